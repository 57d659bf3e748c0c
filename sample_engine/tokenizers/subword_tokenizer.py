"""The tokenizer of a published model: its ``tokenizer.json``, read by ``tokenizers``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from sample_engine.errors import ConfigError, PromptError

__all__ = ["SubwordDecoder", "SubwordTokenizer"]

_CUT = "\ufffd"  # at the end of a text: perhaps a character of which more tokens come
_MOST_BYTES_OF_A_CHARACTER = 4


class SubwordTokenizer:
    """Text to tokens and back, as ``transformers`` does it: special tokens have no text.

    Raises :class:`ConfigError` where the file cannot be read, is of another model, or where the
    library is missing. ``vocab_size`` is how many tokens the model knows.
    """

    def __init__(self, path: Path, vocab_size: int) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise ConfigError(
                f"{str(path)!r} needs the library that reads it: pip install tokenizers."
            ) from None
        try:
            self._tokenizer: Any = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing more exact
            raise ConfigError(f"{str(path)!r} cannot be read as a tokenizer: {error}.") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        last = max(vocabulary, key=vocabulary.__getitem__, default="")
        if not vocabulary or vocabulary[last] >= vocab_size:
            raise ConfigError(
                f"{str(path)!r} is the tokenizer of another model: it has the token {last!r} with "
                f"the number {vocabulary.get(last)}, and the model knows {vocab_size} tokens "
                "(vocab_size). Fetch both from the same place."
            )

    def fewest_tokens(self, text: str) -> int:
        """Return how many tokens a text has at least: not known without encoding it, so none."""
        del text
        return 0

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return the tokens of a text; ``special``: with those that begin every text.

        Raises :class:`PromptError` for a lone surrogate, which no UTF-8 has.
        """
        try:
            found: list[int] = self._tokenizer.encode(text, add_special_tokens=special).ids
        except (UnicodeEncodeError, TypeError) as error:
            raise PromptError(
                f"The text cannot be encoded: {error}. Remove what is no character with "
                "text.encode('utf-8', 'replace').decode()."
            ) from None
        return found

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens."""
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return text

    def incremental_decoder(self) -> SubwordDecoder:
        """Return a decoder for one stream of tokens."""
        return SubwordDecoder(self)


class SubwordDecoder:
    """Decodes a stream of tokens; it never shows a part of a character.

    What a token looks like depends on those before it, so each is decoded together with the ones
    that came last, and what these are by themselves is cut off.
    """

    def __init__(self, tokenizer: SubwordTokenizer) -> None:
        self._tokenizer = tokenizer
        self._before: list[int] = []  # shown already
        self._held: list[int] = []  # not shown yet

    def decode(self, token_ids: Iterable[int]) -> str:
        """Return the text that these tokens complete."""
        return "".join(self._next(token) for token in token_ids)

    def finish(self) -> str:
        """Return what is left at the end of the stream."""
        text = self._new_text()
        self._before, self._held = [], []
        return text

    def _next(self, token: int) -> str:
        self._held.append(token)
        text = self._new_text()
        if text.endswith(_CUT) and len(self._held) < _MOST_BYTES_OF_A_CHARACTER:
            return ""
        if text:
            self._before, self._held = self._held, []
        return text

    def _new_text(self) -> str:
        known = self._tokenizer.decode(self._before)
        return self._tokenizer.decode(self._before + self._held)[len(known) :]
