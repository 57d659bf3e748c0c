"""Tests of the byte tokenizer: whole texts, streams cut anywhere, bytes that are no text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sample_engine.errors import PromptError
from sample_engine.tokenizers.byte_tokenizer import ByteTokenizer

TOKENIZER = ByteTokenizer()


@given(text=st.text())
def test_any_text_comes_back_as_it_was(text: str) -> None:
    tokens = TOKENIZER.encode(text)

    assert TOKENIZER.decode(tokens) == text
    assert all(0 <= token < 256 for token in tokens)


@given(tokens=st.lists(st.integers(0, 300)), data=st.data())
def test_a_stream_cut_anywhere_yields_what_the_whole_yields(
    tokens: list[int], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(tokens)), max_size=6)))
    decoder = TOKENIZER.incremental_decoder()

    bounds = zip([0, *cuts], [*cuts, len(tokens)], strict=True)
    pieces = [decoder.decode(tokens[start:stop]) for start, stop in bounds]

    assert "".join(pieces) + decoder.finish() == TOKENIZER.decode(tokens)


@given(text=st.text(min_size=1))
def test_a_stream_of_single_tokens_never_shows_half_a_character(text: str) -> None:
    decoder = TOKENIZER.incremental_decoder()

    shown = [decoder.decode([token]) for token in TOKENIZER.encode(text)]

    assert [piece for piece in shown if piece] == list(text)
    assert decoder.finish() == ""


@given(data=st.binary())
def test_bytes_that_are_no_utf8_decode_as_python_replaces_them(data: bytes) -> None:
    assert TOKENIZER.decode(list(data)) == data.decode("utf-8", "replace")


def test_an_unfinished_character_is_replaced_at_the_end_only() -> None:
    decoder = TOKENIZER.incremental_decoder()

    assert decoder.decode("ä€".encode()[:-1]) == "ä"
    assert decoder.finish() == "\ufffd"


def test_a_token_has_its_byte() -> None:
    tokens = TOKENIZER.encode("a\u00e9")
    assert [TOKENIZER.token_bytes(token) for token in tokens] == [b"a", b"\xc3", b"\xa9"]
    assert [TOKENIZER.token_text(token) for token in tokens] == ["a", "\ufffd", "\ufffd"]
    assert TOKENIZER.token_bytes(TOKENIZER.eos_token_id) == b""
    assert TOKENIZER.token_bytes(300) == "\ufffd".encode()


def test_the_end_of_text_has_no_text_and_is_no_byte() -> None:
    assert TOKENIZER.decode([104, TOKENIZER.eos_token_id, 105]) == "hi"
    assert TOKENIZER.eos_token_id not in TOKENIZER.encode("\x00\x7f\xff")
    assert TOKENIZER.vocab_size == 257


@pytest.mark.parametrize("token", [257, 128255, -1])
def test_a_token_beyond_the_vocabulary_is_shown_as_a_replacement(token: int) -> None:
    assert TOKENIZER.decode([97, token, 98]) == "a\ufffdb"


def test_half_a_surrogate_pair_is_refused_with_its_place() -> None:
    with pytest.raises(PromptError, match=r"'\\ud800' at character 2"):
        TOKENIZER.encode("ab\ud800")
