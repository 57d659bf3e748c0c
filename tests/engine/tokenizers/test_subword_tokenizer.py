"""Published tokenizers: texts and streams as the library makes them, and files that are wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("tokenizers", reason="published tokenizers are read by it")

from hypothesis import given
from hypothesis import strategies as st

from sample_engine.errors import ConfigError, PromptError
from sample_engine.tokenizers.subword_tokenizer import SubwordTokenizer
from tests.engine.support.subwords import WORDS, make_tokenizer, save_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> SubwordTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder)
    return SubwordTokenizer(folder / "tokenizer.json", 300)


def test_texts_are_those_of_the_library(tokenizer: SubwordTokenizer) -> None:
    library = make_tokenizer()
    text = " ".join(WORDS)
    assert tokenizer.encode(text) == library.encode(text).ids
    assert tokenizer.encode(text)[0] == library.token_to_id("<s>")
    assert tokenizer.encode(text, special=False) == library.encode(text).ids[1:]
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode(text)) < len(text.encode())
    assert tokenizer.fewest_tokens(text) <= len(tokenizer.encode(text))


def test_a_stream_yields_what_the_whole_yields(tokenizer: SubwordTokenizer) -> None:
    @given(tokens=st.lists(st.integers(0, 299)))
    def check(tokens: list[int]) -> None:
        decoder = tokenizer.incremental_decoder()
        parts = [decoder.decode([token]) for token in tokens] + [decoder.finish()]
        assert "".join(parts) == tokenizer.decode(tokens)

    check()


def test_a_character_is_never_shown_in_parts(tokenizer: SubwordTokenizer) -> None:
    tokens = tokenizer.encode("a\u4e16\U0001f600b", special=False)
    decoder = tokenizer.incremental_decoder()
    parts = [decoder.decode([token]) for token in tokens]
    assert "".join(parts) == "a\u4e16\U0001f600b"
    assert not any("\ufffd" in part for part in parts)


def test_a_stream_that_ends_within_a_character_says_so(tokenizer: SubwordTokenizer) -> None:
    decoder = tokenizer.incremental_decoder()
    tokens = make_tokenizer(258).encode("\U0001f600", add_special_tokens=False).ids[:2]
    assert decoder.decode(tokens) == ""
    assert decoder.finish() == "\ufffd"
    assert decoder.finish() == ""


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    with pytest.raises(ConfigError, match=r"of another model: .* knows 257 tokens \(vocab_size\)"):
        SubwordTokenizer(tmp_path / "tokenizer.json", 257)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"model": {"type": "Magic"}}', "\0"])
def test_a_file_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"tokenizer\.json' cannot be read as a tokenizer"):
        SubwordTokenizer(path, 300)


def test_half_a_surrogate_pair_is_refused(tokenizer: SubwordTokenizer) -> None:
    with pytest.raises(PromptError, match="cannot be encoded"):
        tokenizer.encode("a\ud800")


def test_a_library_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ConfigError, match="pip install tokenizers"):
        SubwordTokenizer(tmp_path / "tokenizer.json", 300)
