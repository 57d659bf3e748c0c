"""For models that come without a tokenizer: tokens in, tokens out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sample_engine.errors import PromptError

__all__ = ["NoDecoder", "NoTokenizer"]


class NoTokenizer:
    """Takes no text and makes none. ``where``: where a tokenizer would have to be."""

    def __init__(self, where: str) -> None:
        self._where = where

    def fewest_tokens(self, text: str) -> int:
        """Return how many tokens a text has at least."""
        del text
        return 0

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Raise :class:`PromptError`."""
        del text, special
        raise PromptError(
            f"The model came without a tokenizer: {self._where!r} is not there. Put it there, or "
            "give tokens: {'prompt_token_ids': [...]}."
        )

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return no text."""
        del token_ids
        return ""

    def token_text(self, token: int) -> str:
        """Return no text."""
        del token
        return ""

    def token_bytes(self, token: int) -> bytes:
        """Return no bytes."""
        del token
        return b""

    def incremental_decoder(self, prompt_token_ids: Sequence[int] = ()) -> NoDecoder:
        """Return a decoder for one stream of tokens."""
        del prompt_token_ids
        return NoDecoder()


class NoDecoder:
    """Makes no text of tokens."""

    def decode(self, token_ids: Iterable[int]) -> str:
        """Return no text."""
        del token_ids
        return ""

    def finish(self) -> str:
        """Return no text."""
        return ""
