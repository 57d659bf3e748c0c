"""Published tokenizers: texts and streams as the library makes them, and files that are wrong."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers", reason="published tokenizers are read by it")

from hypothesis import given
from hypothesis import strategies as st

from sample_engine.errors import ConfigError, PromptError
from sample_engine.tokenizers.subword_tokenizer import SubwordTokenizer
from tests.engine.support.subwords import (
    WORDS,
    across_characters,
    make_tokenizer,
    save_tokenizer,
    with_byte_fallback,
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> SubwordTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder)
    return SubwordTokenizer(folder / "tokenizer.json", 300)


def saved(library: Any, folder: Path) -> SubwordTokenizer:
    """The engine's own of a tokenizer of the library."""
    library.save(str(folder / "tokenizer.json"))
    return SubwordTokenizer(folder / "tokenizer.json", library.get_vocab_size())


def streamed(
    tokenizer: SubwordTokenizer, tokens: list[int], prompt: Sequence[int] = ()
) -> list[str]:
    """What a stream shows with each token, and in the end."""
    decoder = tokenizer.incremental_decoder(prompt)
    return [decoder.decode([token]) for token in tokens] + [decoder.finish()]


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
        assert "".join(streamed(tokenizer, tokens)) == tokenizer.decode(tokens)

    check()


def test_a_character_is_never_shown_in_parts(tokenizer: SubwordTokenizer) -> None:
    tokens = tokenizer.encode("a\u4e16\U0001f600b", special=False)
    decoder = tokenizer.incremental_decoder()
    parts = [decoder.decode([token]) for token in tokens]
    assert "".join(parts) == "a\u4e16\U0001f600b"
    assert not any("\ufffd" in part for part in parts)


def test_tokens_that_end_a_character_and_begin_the_next_are_waited_for(tmp_path: Path) -> None:
    text = "\u3042\u3044\u3046\u3048\u304a\u304b"
    library, tokens = across_characters(text)
    tokenizer = saved(library, tmp_path)
    assert streamed(tokenizer, tokens) == ["", *text, ""]

    @given(tokens=st.lists(st.integers(0, library.get_vocab_size() - 1)))
    def check(tokens: list[int]) -> None:
        assert "".join(streamed(tokenizer, tokens)) == tokenizer.decode(tokens)

    check()


def test_tokens_without_text_are_not_counted_as_parts_of_a_character(tmp_path: Path) -> None:
    library, tokens = across_characters("\U0001f600")
    end = library.token_to_id("</s>")
    before, after = [end] * 5 + tokens[:1], [end] * 5 + tokens[1:]
    shown = streamed(saved(library, tmp_path), before + after)
    assert [part for part in shown if part] == ["\U0001f600"]


def test_characters_of_bytes_are_shown_whole_wherever_they_stand(tmp_path: Path) -> None:
    library = with_byte_fallback()
    tokenizer = saved(library, tmp_path)

    def in_bytes(character: str) -> list[int]:
        return [library.token_to_id(f"<0x{byte:02X}>") for byte in character.encode()]

    begins = [library.token_to_id("\u2581"), *in_bytes("\U0001f600")]  # as Llama 2 answers
    assert [part for part in streamed(tokenizer, begins) if part] == ["\U0001f600"]

    words = [[token] for token in (0, 1, 2, *range(259, library.get_vocab_size()))]
    pieces = st.sampled_from([*words, *map(in_bytes, "\u00e9\u4e16\U0001f600a")])

    @given(pieces=st.lists(pieces))
    def check(pieces: list[list[int]]) -> None:
        tokens = [token for piece in pieces for token in piece]
        parts = streamed(tokenizer, tokens)
        assert "".join(parts) == tokenizer.decode(tokens)
        assert not any("\ufffd" in part for part in parts)

    check()


def test_a_text_goes_on_from_its_prompt(tmp_path: Path) -> None:
    library = with_byte_fallback()
    tokenizer = saved(library, tmp_path)
    begin, word, letter = (library.token_to_id(each) for each in ("<s>", "\u2581a", "b"))
    assert "".join(streamed(tokenizer, [word, letter])) == "ab"
    assert "".join(streamed(tokenizer, [word, letter], [begin, word])) == " ab"
    assert "".join(streamed(tokenizer, [word], [begin])) == "a"
    one, two, three = (library.token_to_id(f"<0x{byte:02X}>") for byte in "\u4e16".encode())
    # A character that a prompt has only in part, and one of which its last tokens have a part.
    assert "".join(streamed(tokenizer, [three, letter], [one, two])) == "\ufffdb"
    prompt = [word, *[one, two, three] * 20]
    assert "".join(streamed(tokenizer, [one, two, three, word], prompt)) == "\u4e16 a"


def test_a_token_has_its_bytes(tmp_path: Path) -> None:
    text = "\u3042\u3044\u3046"
    library, tokens = across_characters(text)
    tokenizer = saved(library, tmp_path)
    assert b"".join(map(tokenizer.token_bytes, tokens)) == text.encode()
    assert tokenizer.token_bytes(library.token_to_id("</s>")) == b""
    library = with_byte_fallback()
    tokenizer = saved(library, tmp_path)
    assert [tokenizer.token_bytes(3 + byte) for byte in range(256)] == [
        bytes((byte,)) for byte in range(256)
    ]
    word = library.token_to_id("\u2581\u00e9")
    assert tokenizer.token_text(word) == " \u00e9"
    assert tokenizer.token_bytes(word) == " \u00e9".encode()


def test_bytes_that_are_no_character_are_shown_in_time(tmp_path: Path) -> None:
    library = with_byte_fallback()
    tokenizer = saved(library, tmp_path)
    wrong, right = library.token_to_id("<0xFF>"), library.token_to_id("b")
    for tokens in ([right, wrong] * 9, [wrong] * 300):
        parts = streamed(tokenizer, tokens)
        assert len("".join(parts)) == len(tokenizer.decode(tokens))
        assert sum(map(len, parts[:-1])) >= len(tokenizer.decode(tokens)) - 3


def test_a_stream_that_ends_within_a_character_says_so(tokenizer: SubwordTokenizer) -> None:
    decoder = tokenizer.incremental_decoder()
    tokens = make_tokenizer(258).encode("\U0001f600", add_special_tokens=False).ids[:2]
    assert decoder.decode(tokens) == ""
    assert decoder.finish() == "\ufffd"
    assert decoder.finish() == ""


def with_added(folder: Path, added: Any) -> SubwordTokenizer:
    """The tokenizer of the tests, and tokens that stand in ``tokenizer_config.json`` alone."""
    save_tokenizer(folder)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "added_tokens_decoder": added}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return SubwordTokenizer(folder / "tokenizer.json", 400)


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("strip", [True, False])
def test_tokens_that_a_model_has_beside_its_tokenizers_are_known(
    special: bool, strip: bool, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers", reason="it is compared with")
    added = {
        "301": {"content": "<|y|>", "special": not special, "rstrip": strip},
        "300": {"content": "<|x|>", "special": special, "lstrip": strip},
        "0": {"content": "<s>", "special": True},
    }
    ours = with_added(tmp_path, added)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    for text in ("a <|x|> b", "a<|x|>b<|y|> c", "<|x|><|y|>"):
        tokens = ours.encode(text)
        assert 300 in tokens
        assert tokens == theirs(text)["input_ids"]
        assert ours.decode(tokens) == theirs.decode(tokens, skip_special_tokens=True)
        assert "".join(streamed(ours, tokens)) == ours.decode(tokens)


END = "<|end|>"
AS_TEXT = {"content": END, "special": False}
NAMED: list[tuple[str, dict[str, Any], dict[str, Any], bool]] = [
    ("a named one that is a word alone", {"eos_token": "</s>"}, {}, False),
    ("one in an object", {}, {"eos_token": {"content": "</s>", "lstrip": True}}, False),
    ("one in the file of some years ago", {}, {"eos_token": "</s>"}, False),
    ("a new one", {"pad_token": END}, {}, False),
    ("a new one with a name of the model's own", {"image_token": END}, {}, False),
    ("one of its own names", {"extra_special_tokens": {"image_token": END}}, {}, False),
    ("one without a name", {"additional_special_tokens": [END]}, {}, False),
    ("one without a name of today", {"extra_special_tokens": [END]}, {}, False),
    ("an added one that is none yet", {"eos_token": END}, {}, True),
    ("a list does not change an added one", {"additional_special_tokens": [END]}, {}, True),
    ("flags", {"added_tokens_decoder": {"300": {**AS_TEXT, "special": True}}}, {}, True),
    ("other flags", {"added_tokens_decoder": {"300": AS_TEXT}, "eos_token": END}, {}, True),
    ("less flags", {"added_tokens_decoder": {"1": {"content": "</s>"}}}, {}, True),
    ("split ones", {"split_special_tokens": True, "eos_token": "</s>"}, {}, True),
    ("not split ones", {"split_special_tokens": False, "eos_token": "</s>"}, {}, True),
    ("none", {"eos_token": None, "pad_token": "", "add_bos_token": True}, {}, True),
]


@pytest.mark.parametrize(
    ("settings", "beside", "is_added"),
    [each[1:] for each in NAMED],
    ids=[each[0] for each in NAMED],
)
def test_special_tokens_are_those_that_the_folder_names(
    settings: dict[str, Any], beside: dict[str, Any], is_added: bool, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers", "5.23", reason="it is compared with")
    from tokenizers import AddedToken

    library = make_tokenizer()
    if is_added:
        library.add_tokens([AddedToken(END, special=False, normalized=False, rstrip=True)])
    path = tmp_path / "tokenizer.json"
    written = json.loads(library.to_str())
    if not is_added:
        written["added_tokens"] = []  # words of the model they are still
    path.write_text(json.dumps(written), encoding="utf-8")
    for name, values in (("tokenizer_config", settings), ("special_tokens_map", beside)):
        if values or name == "tokenizer_config":
            text = json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **values})
            (tmp_path / f"{name}.json").write_text(text, encoding="utf-8")
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    ours = SubwordTokenizer(path, 400)
    for text in ("def</s>return", f"def {END} return", f"the </s> {END}"):
        tokens = ours.encode(text)
        assert tokens == theirs(text)["input_ids"]
        assert ours.decode(tokens) == theirs.decode(tokens, skip_special_tokens=True)
        assert "".join(streamed(ours, tokens)) == ours.decode(tokens)


def test_a_special_token_for_which_the_model_has_no_number_is_text(tmp_path: Path) -> None:
    library = save_tokenizer(tmp_path)
    settings = {"pad_token": END, "additional_special_tokens": ["<|more|>", "def"]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    ours = SubwordTokenizer(tmp_path / "tokenizer.json", library.get_vocab_size())
    tokens = ours.encode(f"def {END}", special=False)
    assert tokens[1:] == library.encode(f" {END}", add_special_tokens=False).ids
    assert ours.decode(tokens) == f" {END}"
    larger = SubwordTokenizer(tmp_path / "tokenizer.json", library.get_vocab_size() + 1)
    assert larger.decode(larger.encode(f"<|more|>{END}")) == "<|more|>"


@pytest.mark.parametrize("name", ["tokenizer_config", "special_tokens_map"])
def test_a_special_token_that_is_no_text_is_refused(name: str, tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    text = json.dumps({"pad_token": "\ud800", "unk_token": 5, "additional_special_tokens": 7})
    (tmp_path / f"{name}.json").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"names '\\ud800' as a special token, which has no UTF"):
        SubwordTokenizer(tmp_path / "tokenizer.json", 400)


@pytest.mark.parametrize(
    ("added", "words"),
    [
        ({"305": {"content": "<|x|>"}}, r"'<\|x\|>' with the number 305, and with .* is 300"),
        ({"5": {"content": "<s>"}}, r"'<s>' with the number 5, and with the tokenizer .* is 0"),
        ({"x": {"content": "<|x|>"}}, "its added_tokens_decoder cannot be read"),
        ({"300": {"content": 3}}, "its added_tokens_decoder cannot be read"),
        ({"300": {"text": "<|x|>"}}, "its added_tokens_decoder cannot be read"),
        ({"300": "<|x|>"}, "its added_tokens_decoder cannot be read"),
        ([3], "its added_tokens_decoder cannot be read"),
    ],
)
def test_added_tokens_that_are_of_another_model_or_none_are_refused(
    added: Any, words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=words):
        with_added(tmp_path, added)


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


@pytest.mark.parametrize(
    ("change", "words"),
    [
        # A token to begin texts with that is not there, a panic of the library's.
        ({"post_processor": {"special_tokens": {}}}, "cannot be used: .*no entry found"),
        ({"model": {"unk_token": "?", "vocab": {"b": 0}, "merges": []}}, "cannot be used: .*Unk t"),
        ({"decoder": {"type": "Strip", "content": "a", "start": 0, "stop": 9}}, "cannot be used: "),
        ({"model": {"continuing_subword_prefix": "xyz"}}, "cannot be read as a tokenizer: "),
    ],
)
def test_a_file_that_the_library_fails_with_is_refused(
    change: dict[str, Any], words: str, tmp_path: Path
) -> None:
    save_tokenizer(tmp_path)
    path = tmp_path / "tokenizer.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    for name, each in change.items():
        values[name] = {**values[name], **each}
    path.write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"tokenizer\.json' {words}"):
        SubwordTokenizer(path, 300)


def test_other_threads_run_while_a_long_text_is_encoded(tokenizer: SubwordTokenizer) -> None:
    ends: list[float] = []
    looked = threading.Event()  # the clock of a thread is there as long as the thread

    def encode() -> None:
        ends.append(time.thread_time())
        tokenizer.encode("the def " * (1 << 15))
        ends.append(time.thread_time())
        looked.wait()

    thread = threading.Thread(target=encode)
    thread.start()
    clock = time.pthread_getcpuclockid(thread.ident or 0)
    seen = []
    while len(ends) < 2:  # how far it has come
        seen.append(time.clock_gettime(clock))
        time.sleep(0)
    looked.set()
    thread.join()
    tenth = (ends[1] - ends[0]) / 10
    assert any(ends[0] + tenth < each < ends[1] - tenth for each in seen)


def test_half_a_surrogate_pair_is_refused(tokenizer: SubwordTokenizer) -> None:
    with pytest.raises(PromptError, match="cannot be encoded"):
        tokenizer.encode("a\ud800")


def test_a_library_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ConfigError, match="pip install tokenizers"):
        SubwordTokenizer(tmp_path / "tokenizer.json", 300)
