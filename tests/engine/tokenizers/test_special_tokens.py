"""Special tokens that a folder names in several ways: which there are, and their numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers", reason="published tokenizers are read by it")

from sample_engine.errors import ConfigError
from sample_engine.tokenizers.chat_template import read_chat_template
from sample_engine.tokenizers.subword_tokenizer import SubwordTokenizer
from tests.engine.support.subwords import make_tokenizer

TEMPLATE = "{{ bos_token }},{{ eos_token }},{{ pad_token }},{{ image_token }}"
TEXT = "a <a> <b> <c> <d> <e> b"
FLAGS = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
DECODER = {"added_tokens_decoder": {"300": {"content": "<e>", "special": True, **FLAGS}}}
OBJECT = {"content": "<a>", **FLAGS}

FOLDERS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "named ones before those of a list",
        {"additional_special_tokens": ["<c>", "<d>"], "eos_token": "<b>", "bos_token": "<a>"},
        {},
    ),
    (
        "a name of its own before those of a list",
        {"extra_special_tokens": ["<c>", "<a>"], "image_token": "<b>", "eos_token": "<a>"},
        {},
    ),
    (
        "an object with a name of its own",
        {"image_token": {**OBJECT, "__type": "AddedToken"}, "pad_token": "<b>"},
        {},
    ),
    (
        "the list of today",
        {"extra_special_tokens": ["<c>"], "additional_special_tokens": ["<d>"]},
        {},
    ),
    (
        "names of its own beside a list",
        {"extra_special_tokens": {"image_token": "<b>"}, "additional_special_tokens": ["<d>"]},
        {},
    ),
    (
        "names of its own as they are written today",
        {"model_specific_special_tokens": {"image_token": "<b>"}, "bos_token": "<a>"},
        {},
    ),
    ("the file beside it counts more", {"bos_token": "<a>"}, {"bos_token": "<b>"}),
    ("an object in the file beside it", {"bos_token": "<c>"}, {"eos_token": OBJECT}),
    (
        "lists in both",
        {"extra_special_tokens": ["<c>", "<d>"]},
        {"extra_special_tokens": ["<b>", "<c>"], "bos_token": "<a>"},
    ),
    (
        "an older list in both",
        {"additional_special_tokens": ["<c>"]},
        {"additional_special_tokens": ["<b>"]},
    ),
    (
        "nothing in the file beside it",
        {"pad_token": "<a>", "bos_token": "<b>"},
        {"pad_token": None},
    ),
    (
        "the file beside it does not count",
        {**DECODER, "bos_token": "<a>", "additional_special_tokens": ["<c>"]},
        {"bos_token": "<b>", "eos_token": "<d>", "additional_special_tokens": ["<d>"]},
    ),
]


@pytest.mark.parametrize(
    ("settings", "beside"), [each[1:] for each in FOLDERS], ids=[each[0] for each in FOLDERS]
)
def test_special_tokens_and_their_numbers_are_those_of_transformers(
    settings: dict[str, Any], beside: dict[str, Any], tmp_path: Path
) -> None:
    compare(tmp_path, tokenizer_config=settings, special_tokens_map=beside)


def compare(folder: Path, **files: dict[str, Any]) -> None:
    """Look at what a folder with these files makes of a text, here and in transformers."""
    transformers = pytest.importorskip("transformers", "5.23", reason="it is compared with")
    library = make_tokenizer()
    assert library.get_vocab_size() == 300
    library.save(str(folder / "tokenizer.json"))
    files["tokenizer_config"] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **files.get("tokenizer_config", {}),
    }
    for name, values in files.items():
        if values:
            (folder / f"{name}.json").write_text(json.dumps(values), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    ours = SubwordTokenizer(folder / "tokenizer.json", 400)
    tokens = ours.encode(TEXT)
    assert tokens == theirs(TEXT)["input_ids"]
    assert ours.decode(tokens) == theirs.decode(tokens, skip_special_tokens=True)
    template = read_chat_template(folder)
    assert template is not None
    messages = [{"role": "user", "content": "x"}]
    assert template.prompt(messages) == theirs.apply_chat_template(messages, tokenize=False)


NUMBERS = {"<b>": 301, "<a>": 300}


@pytest.mark.parametrize(
    "files",
    [
        {"added_tokens": NUMBERS},
        {"added_tokens": NUMBERS, "tokenizer_config": {"eos_token": "<b>", "pad_token": "<c>"}},
        {"added_tokens": NUMBERS, "tokenizer_config": {"additional_special_tokens": ["<b>"]}},
        {"added_tokens": NUMBERS, "special_tokens_map": {"bos_token": "<a>", "pad_token": "<d>"}},
        {"added_tokens": {**NUMBERS, "</s>": 1}},
        {"added_tokens": NUMBERS, "tokenizer_config": DECODER},
    ],
    ids=["alone", "a name", "a list", "a name beside", "one that is known", "not counted"],
)
def test_tokens_of_a_file_of_their_own_are_those_of_transformers(
    files: dict[str, Any], tmp_path: Path
) -> None:
    compare(tmp_path, **files)


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({"<a>": 301}, "has the token '<a>' with the number 301, and .* that is 300"),
        ({"<a>": "300"}, "its tokens cannot be read"),
        ({"<a>": True}, "its tokens cannot be read"),
        ({"\ud800": 300}, "its tokens cannot be read"),
    ],
)
def test_numbers_of_another_tokenizer_are_refused(
    numbers: dict[str, Any], words: str, tmp_path: Path
) -> None:
    make_tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "added_tokens.json").write_text(json.dumps(numbers), encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"added_tokens\.json'.*{words}"):
        SubwordTokenizer(tmp_path / "tokenizer.json", 400)


def test_a_number_beyond_those_of_the_model_is_passed_over(tmp_path: Path) -> None:
    make_tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "added_tokens.json").write_text(json.dumps(NUMBERS), encoding="utf-8")
    ours = SubwordTokenizer(tmp_path / "tokenizer.json", 301)
    assert 300 in ours.encode("<a>")
    assert max(ours.encode("<b>")) < 300
