"""The tokenizer of a published model: its ``tokenizer.json``, read by ``tokenizers``."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sample_engine.errors import ConfigError, PromptError
from sample_engine.model.settings_file import is_there, read_settings
from sample_engine.tokenizers.special_tokens import (
    content_of,
    listed_tokens,
    named_tokens,
    settings_of_tokenizer,
)

__all__ = ["SubwordDecoder", "SubwordTokenizer"]

_CUT = "\ufffd"  # at the end of a text: perhaps a character of which more tokens come
_MOST_BYTES_OF_A_CHARACTER = 4
_MOST_BEFORE = 16  # tokens of a prompt that what follows is decoded with
_MOST_HELD = 64  # tokens: so many that are no character in the end, and none is waited for
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")  # of an added token
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")  # a token of SentencePiece's for a byte


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
        except BaseException as error:
            _raise_unless_of_library(error)
            raise ConfigError(f"{str(path)!r} cannot be read as a tokenizer: {error}.") from error
        _add_tokens(self._tokenizer, path.parent, vocab_size)
        _add_special_tokens(self._tokenizer, path.parent, vocab_size)
        settings = settings_of_tokenizer(path.parent)
        # Then the texts of special tokens are texts as others.
        self._tokenizer.encode_special_tokens = settings.get("split_special_tokens") is True
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
        try:  # the library does not look at all of a file before it is used
            self.decode(self.encode("a"))
        except BaseException as error:
            _raise_unless_of_library(error)
            raise ConfigError(f"{str(path)!r} cannot be used: {error}") from error
        added = self._tokenizer.get_added_tokens_decoder()
        self._special = frozenset(token for token, each in added.items() if each.special)

    def fewest_tokens(self, text: str) -> int:
        """Return how many tokens a text has at least: not known without encoding it, so none."""
        del text
        return 0

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return the tokens of a text; ``special``: with those that begin every text.

        Raises :class:`PromptError` for a lone surrogate, which no UTF-8 has, and where the library
        fails.
        """
        try:
            # Other threads run meanwhile, which encode() of one text does not let them.
            (found,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=special)
        except (UnicodeEncodeError, TypeError) as error:
            raise PromptError(
                f"The text cannot be encoded: {error}. Remove what is no character with "
                "text.encode('utf-8', 'replace').decode()."
            ) from None
        except BaseException as error:
            _raise_unless_of_library(error)
            raise PromptError(f"The library that encodes texts fails: {error}.") from error
        return list(found.ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens."""
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return text

    def has_text(self, token: int) -> bool:
        """Whether a token is one that :meth:`decode` does not pass over, wherever it stands."""
        return token not in self._special and self._tokenizer.id_to_token(token) is not None

    def token_text(self, token: int) -> str:
        """Return the text of one token among others: with the space that a first one has not."""
        alone = self.decode((token,))
        return alone if _CUT in alone else self.decode((token, token))[len(alone) :]

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of one token, which may be a part of a character."""
        text = self.token_text(token)
        if _CUT not in text:
            return text.encode()
        piece: str = self._tokenizer.id_to_token(token)
        if _BYTE.fullmatch(piece):
            return bytes.fromhex(piece[3:5])
        letters = _bytes_of_letters()
        if all(letter in letters for letter in piece):
            return bytes(letters[letter] for letter in piece)
        return text.encode()

    def incremental_decoder(self, prompt_token_ids: Sequence[int] = ()) -> SubwordDecoder:
        """Return a decoder for the tokens that follow a prompt."""
        return SubwordDecoder(self, self._end_of(prompt_token_ids))

    def _end_of(self, token_ids: Sequence[int]) -> list[int]:
        """Return the last tokens of a prompt, without parts of characters at both ends."""
        end = list(filter(self.has_text, token_ids[-_MOST_BEFORE:]))
        while end and self.decode(end).startswith(_CUT):
            del end[0]
        return [] if self.decode(end).endswith(_CUT) else end


class SubwordDecoder:
    """Decodes a stream of tokens; it never shows a part of a character.

    What a token looks like depends on those before it, so each is decoded together with the ones
    that came last, at first those of a prompt, and what was shown of these is cut off. What a text
    ends with is not shown while it may be a part of a character: that is up to three marks, one for
    each byte or one for all.
    """

    def __init__(self, tokenizer: SubwordTokenizer, before: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._before = list(before)  # shown already, or of the prompt
        self._held: list[int] = []  # shown in part or not at all
        self._shown = tokenizer.decode(self._before)  # of the text of both

    def decode(self, token_ids: Iterable[int]) -> str:
        """Return the text that these tokens complete."""
        return "".join(map(self._next, filter(self._tokenizer.has_text, token_ids)))

    def finish(self) -> str:
        """Return what is left at the end of the stream."""
        text = self._text()[len(self._shown) :]
        self._before, self._held, self._shown = [], [], ""
        return text

    def _next(self, token: int) -> str:
        self._held.append(token)
        text = self._text()
        marks = len(text) - len(text.rstrip(_CUT))
        if not text.startswith(self._shown):
            # A byte beside those of whole characters, which are marks until it is whole itself.
            waits = marks > 0 and len(self._held) < _MOST_BYTES_OF_A_CHARACTER
            stop = len(self._shown) if waits else len(text)
        else:
            waits = len(self._held) < _MOST_HELD
            stop = len(text) - min(marks, _MOST_BYTES_OF_A_CHARACTER - 1) * waits
        new = text[len(self._shown) : stop]
        if stop >= len(text) and new:
            self._before, self._held = self._held, []
            self._shown = self._tokenizer.decode(self._before)
        else:
            self._shown += new
        return new

    def _text(self) -> str:
        return self._tokenizer.decode(self._before + self._held)


def _raise_unless_of_library(error: BaseException) -> None:
    """Raise what the library cannot have raised, as Ctrl-C.

    It raises nothing more exact than :class:`Exception`, and where it fails in itself what is none:
    a panic of Rust.
    """
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
        raise error


def _add_tokens(tokenizer: Any, folder: Path, vocab_size: int) -> None:
    """Add the tokens that a model has beside its tokenizer's, as ``transformers`` does it.

    They stand in ``tokenizer_config.json``, mostly those of ``tokenizer.json`` again, and in
    folders of some years ago in a file of their own.
    """
    from tokenizers import AddedToken

    path = folder / "tokenizer_config.json"
    numbered = settings_of_tokenizer(folder).get("added_tokens_decoder")
    known = {each.content: each for each in _added(tokenizer)}
    try:
        if numbered is not None:
            added = [(int(number), dict(given)) for number, given in numbered.items()]
        else:
            path = folder / "added_tokens.json"
            added = list(_tokens_beside(path, known, vocab_size))
        for number, given in sorted(added, key=lambda each: each[0]):
            token = AddedToken(
                given["content"], **{name: given[name] for name in _FLAGS if name in given}
            )
            before = known.get(token.content)
            token.special = token.special or _is_special(before)
            found = tokenizer.token_to_id(token.content)
            if found is None or repr(token) != repr(before):
                tokenizer.add_tokens([token])
                found = tokenizer.token_to_id(token.content)
            if found != number:
                raise ConfigError(
                    f"{str(path)!r} has the token {token.content!r} with the number {number}, and "
                    f"with the tokenizer beside it that is {found}: one of the two files is of "
                    "another model."
                )
    except ConfigError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        what = "tokens" if numbered is None else "added_tokens_decoder"
        raise ConfigError(
            f"{str(path)!r}: its {what} cannot be read ({type(error).__name__}: {error})."
        ) from error


def _tokens_beside(
    path: Path, known: Mapping[str, Any], vocab_size: int
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The tokens of a file that has nothing but their numbers, without those beyond the model's."""
    if not is_there(path):
        return
    named = (*named_tokens(path.parent).values(), *listed_tokens(path.parent))
    special = set(map(content_of, named))
    for text, number in read_settings(path).items():
        if not isinstance(number, int) or isinstance(number, bool):
            raise TypeError(f"{number!r} is no number of a token")
        if number >= vocab_size:
            continue
        flags = {name: getattr(known[text], name) for name in _FLAGS} if text in known else {}
        usual = {"special": text in special, "normalized": text not in special}
        yield number, {"content": text, **usual, **flags}


def _add_special_tokens(tokenizer: Any, folder: Path, vocab_size: int) -> None:
    """Let the special tokens that a folder names be special, as ``transformers`` does it.

    A ``tokenizer.json`` need not know that they are, and may have them as words alone. What the
    model has no number for is no token of it.
    """
    added = {each.content: each for each in _added(tokenizer)}
    listed = [token for token in listed_tokens(folder) if content_of(token) not in added]
    wanted: dict[str, Any] = {}
    for token in (*named_tokens(folder).values(), *listed):  # new ones are numbered in this order
        wanted.setdefault(content_of(token), token)
    wanted = {text: token for text, token in wanted.items() if not _is_special(added.get(text))}
    for text, given in wanted.items():
        try:
            is_known = tokenizer.token_to_id(text) is not None
        except UnicodeEncodeError:
            raise ConfigError(
                f"{str(folder)!r} names {text!r} as a special token, which has no UTF-8: correct "
                "its tokenizer_config.json, or special_tokens_map.json."
            ) from None
        if not is_known:
            numbers = tokenizer.get_vocab(with_added_tokens=True).values()
            if max(numbers, default=-1) + 1 >= vocab_size:
                continue
        tokenizer.add_special_tokens([_as_special(text, added.get(text, given))])


def _added(tokenizer: Any) -> list[Any]:
    return list(tokenizer.get_added_tokens_decoder().values())


def _is_special(token: Any) -> bool:
    return token is not None and bool(token.special)


def _as_special(text: str, given: Any) -> Any:
    """A special token, with the flags of an added one or of an object that a file has."""
    from tokenizers import AddedToken

    flags = {"normalized": False}
    for name in _FLAGS:
        flag = given.get(name) if isinstance(given, Mapping) else getattr(given, name, None)
        if isinstance(flag, bool):
            flags[name] = flag
    return AddedToken(text, **{**flags, "special": True})


@functools.cache
def _bytes_of_letters() -> Mapping[str, int]:
    """The letters that stand for bytes in tokens of byte-level BPE, as GPT-2 has them.

    A byte that is a visible character of Latin-1 stands for itself, the others for those from
    U+0100 on.
    """
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in visible]
    return {
        **{chr(byte): byte for byte in visible},
        **{chr(0x100 + number): byte for number, byte in enumerate(others)},
    }
