"""The byte tokenizer: text to tokens and back, whole or as a stream."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from sample_engine.errors import PromptError

__all__ = ["ByteTokenizer", "IncrementalDecoder"]

_NUM_BYTES = 256
# UTF-8 has no such byte: it decodes to the replacement character, wherever it stands.
_NOT_UTF8 = b"\xff"


class ByteTokenizer:
    """256 bytes and one end-of-text token.

    Bytes need no vocabulary file and no merges, represent every text and every file, and let a
    model of few parameters spend them on its layers instead of an embedding table. The end of text
    is a 257th token and not one of the bytes, because every byte may occur in a prompt (NUL
    included), and a prompt must not be able to say "end of text".
    """

    eos_token_id: int = _NUM_BYTES
    vocab_size: int = _NUM_BYTES + 1

    def fewest_tokens(self, text: str) -> int:
        """Return how many tokens a text has at least, without encoding it."""
        return len(text)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return the bytes of ``text`` in UTF-8. No ``special`` token begins a text of bytes.

        Raises :class:`PromptError` for a lone surrogate, which no UTF-8 has.
        """
        del special
        try:
            return list(text.encode("utf-8"))
        except UnicodeEncodeError as error:
            raise PromptError(
                f"The text has {text[error.start]!r} at character {error.start}, half of a "
                "surrogate pair: such text has no UTF-8. Decode it properly, or remove it with "
                "text.encode('utf-8', 'replace').decode()."
            ) from None

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens. What is not UTF-8 becomes ``U+FFFD``.

        The end-of-text token has no text. Neither has a token beyond the vocabulary, as a model of
        random weights and another vocabulary makes them: it is shown as ``U+FFFD`` too.
        """
        return _bytes_of(token_ids).decode("utf-8", "replace")

    def token_text(self, token: int) -> str:
        """Return the text of one token among others."""
        return self.decode((token,))

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of one token: of a character mostly a part."""
        return bytes((token,)) if 0 <= token < _NUM_BYTES else self.decode((token,)).encode()

    def incremental_decoder(self, prompt_token_ids: Sequence[int] = ()) -> IncrementalDecoder:
        """Return a decoder for one stream of tokens. What a byte is depends on no prompt."""
        del prompt_token_ids
        return IncrementalDecoder()


class IncrementalDecoder:
    """Decodes a stream of tokens; it never shows a part of a character.

    The texts that it returns, joined, are what :meth:`ByteTokenizer.decode` makes of all tokens.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def decode(self, token_ids: Iterable[int]) -> str:
        """Return the text that these tokens complete."""
        return self._decoder.decode(_bytes_of(token_ids))

    def finish(self) -> str:
        """Return what is left at the end of the stream: ``U+FFFD`` for an unfinished character."""
        return self._decoder.decode(b"", final=True)


def _bytes_of(token_ids: Iterable[int]) -> bytes:
    return b"".join(
        bytes((token,)) if 0 <= token < _NUM_BYTES else _NOT_UTF8
        for token in token_ids
        if token != ByteTokenizer.eos_token_id
    )
