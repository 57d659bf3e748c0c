"""Chat templates: where they are, what they may do, and what is wrong with them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jinja2", reason="chat templates are Jinja2's")

from sample_engine.errors import ConfigError, PromptError
from sample_engine.tokenizers.chat_template import ChatTemplate, read_chat_template
from tests.engine.support.subwords import TEMPLATE, make_tokenizer

HI = [{"role": "user", "content": " hi "}]


def settings(folder: Path, **values: Any) -> Path:
    (folder / "tokenizer_config.json").write_text(json.dumps(values), encoding="utf-8")
    return folder


def template(text: str) -> ChatTemplate:
    return ChatTemplate(text, {"bos_token": "<s>"}, Path("here"))


def test_a_conversation_becomes_a_text() -> None:
    made = template(TEMPLATE)
    assert made.prompt(HI) == "<s><|user|>hi\n<|assistant|>"
    assert made.prompt(HI, answer=False) == "<s><|user|>hi\n"


def test_it_is_found_where_models_have_it(tmp_path: Path) -> None:
    assert read_chat_template(tmp_path) is None
    assert read_chat_template(settings(tmp_path, bos_token="<s>")) is None
    named = [
        {"name": "tool_use", "template": "no"},
        {"name": "default", "template": "{{bos_token}}"},
    ]
    for text in (named, "{{ bos_token }}"):
        for bos in ("<b>", {"content": "<b>"}):
            found = read_chat_template(settings(tmp_path, bos_token=bos, chat_template=text))
            assert found is not None
            assert found.prompt(HI) == "<b>"
    (tmp_path / "chat_template.jinja").write_text("alone {{ eos_token }}", encoding="utf-8")
    found = read_chat_template(tmp_path)
    assert found is not None
    assert found.prompt(HI) == "alone "


def test_json_is_as_the_model_reads_it() -> None:
    made = template("{{ messages[0] | tojson }}{{ strftime_now('%Y') | length }}")
    message = {"role": "user", "content": "<\u00e9>"}
    assert made.prompt([message]) == '{"role": "user", "content": "<\u00e9>"}4'


TEMPLATES = [
    "{% if tools is not none %}tools{% endif %}{% if documents is not none %}documents{% endif %}",
    "{% for m in messages %}a\n {%- generation %}{{ m.content }}{% endgeneration %}\nb{% endfor %}",
    "{{ messages[0] | tojson(ensure_ascii=True) }}{{ messages | tojson(separators=(',', ':')) }}",
    "{{ messages[0] | tojson(sort_keys=true, indent=2) }}",
    "{% for m in messages %}{{ m.content }}{{ m.name is defined }}{% endfor %}",
    "{{ bos_token }}{{ unk_token is defined }}{{ pad_token }}{{ sep_token }}{{ image_token }}",
]


@pytest.mark.parametrize("text", TEMPLATES)
def test_a_template_finds_what_transformers_gives_it(text: str, tmp_path: Path) -> None:
    why = "it is compared with; earlier ones give a template None for what a message leaves open"
    transformers = pytest.importorskip("transformers", "5.23", reason=why)
    make_tokenizer().save(str(tmp_path / "tokenizer.json"))
    special = {"image_token": "</s>"}
    settings(tmp_path, bos_token="<s>", extra_special_tokens=special, chat_template=text)
    beside = {"bos_token": "<s>", "pad_token": "<p>", "sep_token": {"content": "</s>"}}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(beside), encoding="utf-8")
    answer = {"role": "assistant", "content": None, "name": None, "more": "\u00e9"}
    messages: list[dict[str, Any]] = [*HI, answer]
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    right = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    found = read_chat_template(tmp_path)
    assert found is not None
    assert found.prompt(messages) == right


def test_a_refusal_of_the_template_is_told() -> None:
    with pytest.raises(PromptError, match="refuses this: no tools: x"):
        template(TEMPLATE).prompt([{"role": "tool", "content": "x"}])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ messages[0].content.missing.more }}", "UndefinedError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{% for i in range(10000000) %}{% endfor %}", "OverflowError"),
    ],
)
def test_what_a_template_may_not_do_is_an_error(text: str, words: str) -> None:
    with pytest.raises(PromptError, match=rf"The chat template in 'here' fails: {words}"):
        template(text).prompt(HI)


def test_what_is_no_template_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is none: TemplateSyntaxError"):
        template("{% if %}")
    with pytest.raises(ConfigError, match="is no text"):
        read_chat_template(settings(tmp_path, chat_template=7))
    path = tmp_path / "tokenizer_config.json"
    for text, words in (("[]", "holds no JSON object"), ("{", "cannot be read as JSON")):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=words):
            read_chat_template(tmp_path)
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_chat_template(tmp_path)
    path.write_bytes(b" " * (1 << 24) + b"{}")
    with pytest.raises(ConfigError, match="more than 16777216 bytes"):
        read_chat_template(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("{% if x %}" * 9999, "RecursionError", id="too deep to be parsed"),
        pytest.param("{{" + "(" * 9999 + "}}", "RecursionError", id="too deep an expression"),
        pytest.param(
            "{% for x in messages %}" * 21 + "{% endfor %}" * 21,
            "SyntaxError",
            id="too deep for Python",
        ),
    ],
)
def test_what_cannot_be_compiled_is_no_template(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=rf"in 'here' is none: {words}"):
        template(text)


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ConfigError, match="pip install jinja2"):
        template("x")


def test_names_without_a_default_are_told(tmp_path: Path) -> None:
    use, rag = ({"name": name, "template": "x"} for name in ("tool_use", "rag"))
    odd: list[Any] = [{"name": ["default"], "template": "x"}, {"template": "x"}, "default", None]
    nothing = {"name": "default", "template": None}
    for named, words in (
        ([use, rag], "none that is called 'default': 'tool_use', 'rag'."),
        ([*odd, rag, nothing], "none that is called 'default': 'rag'."),
        (odd, "none that is called 'default': none at all."),
        ([], "none that is called 'default': none at all."),
    ):
        with pytest.raises(ConfigError, match=words):
            read_chat_template(settings(tmp_path, chat_template=named))
    (tmp_path / "chat_template.jinja").write_text("alone", encoding="utf-8")
    found = read_chat_template(tmp_path)
    assert found is not None
    assert found.prompt(HI) == "alone"


def test_names_without_a_default_in_a_folder_are_told(tmp_path: Path) -> None:
    beside = tmp_path / "additional_chat_templates"
    beside.mkdir()
    assert read_chat_template(tmp_path) is None
    (beside / "tool_use.jinja").write_text("x", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"additional_chat_templates' .*'default': 'tool_use'"):
        read_chat_template(tmp_path)
    assert read_chat_template(settings(tmp_path, chat_template="x")) is not None
