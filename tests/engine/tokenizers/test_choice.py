"""Which tokenizer a model has, and conversations through a whole engine."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("tokenizers", reason="published tokenizers are read by it")
pytest.importorskip("jinja2", reason="chat templates are Jinja2's")

from sample_engine import LLM, SamplingParams
from sample_engine.config import EngineConfig
from sample_engine.errors import ConfigError, PromptError, WeightsError
from sample_engine.tokenizers.choice import BYTES, text_of_model
from sample_engine.tokenizers.no_tokenizer import NoTokenizer
from tests.engine.support.model import SMALL
from tests.engine.support.no_file import KINDS, no_file
from tests.engine.support.subwords import save_tokenizer
from tests.engine.support.weights import save

WIDER = dataclasses.replace(SMALL, vocab_size=300)
HI = [{"role": "user", "content": "hi"}]
SETTINGS: dict[str, Any] = {"device": "cpu", "worker_method": "inproc", "num_blocks": 20}


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a tokenizer of subwords and a template."""
    folder = save(tmp_path_factory.mktemp("wide") / "model", WIDER)
    save_tokenizer(folder)
    return folder


def test_bytes_are_for_models_of_bytes_and_of_no_weights(tmp_path: Path) -> None:
    assert text_of_model(EngineConfig()) is BYTES
    assert text_of_model(EngineConfig(model="llama-3-8b", load_format="dummy")) is BYTES
    folder = str(save(tmp_path / "wide", WIDER))
    assert text_of_model(EngineConfig(model=folder, load_format="dummy")) is BYTES
    assert isinstance(text_of_model(EngineConfig(model=folder)).tokenizer, NoTokenizer)


def test_a_model_of_bytes_may_have_a_template(tmp_path: Path) -> None:
    folder = save(tmp_path)
    (folder / "chat_template.jinja").write_text("<{{ messages[0].content }}>", encoding="utf-8")
    text = text_of_model(EngineConfig(model=str(folder)))
    assert text.conversation(HI) == ("<hi>", list(b"<hi>"))
    assert text.tokenizer is BYTES.tokenizer


def test_texts_and_conversations_reach_the_model_as_its_tokens(wide: Path) -> None:
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    with LLM(wide, **SETTINGS) as llm:
        tokenizer = text_of_model(llm.config).tokenizer
        (text,) = llm.generate("def the", params)
        assert list(text.prompt_token_ids) == tokenizer.encode("def the")
        assert text.outputs[0].text == tokenizer.decode(text.outputs[0].token_ids)
        parts = llm.generate_stream("def the", params)
        assert "".join(part.text for part in parts) == text.outputs[0].text
        (one,) = llm.chat(HI, params)
        assert one.prompt == "<s><|user|>hi\n<|assistant|>"
        assert list(one.prompt_token_ids) == tokenizer.encode(one.prompt, special=False)
        two = llm.chat([HI, [*HI, {"role": "assistant", "content": "yes"}]], params)
        assert two[0].outputs[0].token_ids == one.outputs[0].token_ids
        assert two[1].prompt == "<s><|user|>hi\n<|assistant|>yes\n<|assistant|>"
        halves: list[Any] = [
            {"type": "text", "text": "h"},
            {"type": "text", "text": "i", "more": None},
        ]
        (in_parts,) = llm.chat([{"role": "user", "content": halves}], params)
        assert in_parts.prompt == one.prompt
        with pytest.raises(PromptError, match="refuses this: no tools"):
            llm.chat([{"role": "tool", "content": ""}])
        odd: list[Any] = [[], [HI, 5], [HI, None], [[]], ["hi"], [torch.tensor([1, 2])], [5]]
        for wrong in odd:
            with pytest.raises(PromptError, match="A conversation is a list of at least one"):
                llm.chat(wrong)
        with pytest.raises(TypeError, match="is of the type dict: give a list of messages"):
            llm.chat(HI[0])  # type: ignore[arg-type]
        with pytest.raises(
            PromptError, match=r"prompt of 1\d\d tokens, but with max_model_len=128"
        ):
            llm.generate("x" * 128)


@pytest.mark.parametrize("wrong", [-1, 300, 1 << 32, 1 << 70, 1.5, "a", None, [1]])
def test_tokens_that_no_vocabulary_has_are_refused_before_the_tokenizer_sees_them(
    wrong: Any, wide: Path
) -> None:
    params = SamplingParams(max_tokens=3, ignore_eos=True)
    prompts = [{"prompt_token_ids": [5, wrong]}, {"prompt_token_ids": [5, 6]}]
    with LLM(wide, **SETTINGS) as llm:
        with pytest.raises(PromptError, match=r"has the token|must be whole numbers"):
            llm.generate(prompts[0], params)
        refused, fine = llm.generate(prompts, params)
    assert refused.error_type == "PromptError"
    assert len(fine.token_ids) == 3


def test_without_a_tokenizer_tokens_are_taken_alone(tmp_path: Path) -> None:
    with LLM(save(tmp_path / "wide", WIDER), **SETTINGS) as llm:
        with pytest.raises(PromptError, match="came without a tokenizer"):
            llm.generate("hi")
        params = SamplingParams(max_tokens=3, ignore_eos=True)
        (output,) = llm.generate({"prompt_token_ids": [1, 299]}, params)
    assert len(output.outputs[0].token_ids) == 3
    assert output.outputs[0].text == ""


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"type": "image_url", "image_url": {"url": "x"}}, "a part of the type 'image_url'"),
        ({"type": "text"}, "a part of the type 'text'"),
        ({"text": "hi"}, "a part of the type None"),
        ({"type": "text", "text": 5}, "a part of the type 'text'"),
        ("hi", "a part of the type 'hi'"),
        ({"type": "text", "text": "hi", "cache_control": {"x": 1}}, "has 'cache_control', which"),
    ],
)
def test_parts_of_a_message_that_no_model_would_see_are_refused(
    part: Any, words: str, wide: Path
) -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "hi"}, part]}
    for text in (BYTES, text_of_model(EngineConfig(model=str(wide)))):
        with pytest.raises(PromptError, match=words):
            text.conversation([message])


def test_without_a_template_each_message_is_a_line() -> None:
    text, tokens = BYTES.conversation([*HI, {"role": "system", "content": "x"}])
    assert text == "user: hi\nsystem: x\nassistant: "
    assert bytes(tokens).decode() == text
    for wrong in ([], ["hi"], [{"role": "user"}], [{"role": "user", "content": ["hi"]}]):
        with pytest.raises(PromptError):
            BYTES.conversation(wrong)  # type: ignore[arg-type]


def test_files_of_another_model_are_told_before_the_engine_starts(tmp_path: Path) -> None:
    folder = save(tmp_path / "small")
    save_tokenizer(folder)
    (folder / "model.safetensors").unlink()  # nothing of it would be loaded
    with pytest.raises(ConfigError, match="is the tokenizer of another model"):
        LLM(folder, **SETTINGS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "chat_template.jinja",
        "model.safetensors",
        "model.safetensors.index.json",
        "eagle.safetensors",
    ],
)
def test_what_has_the_name_of_a_file_of_a_model_and_is_none_is_refused(
    name: str, kind: str, wide: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(wide, tmp_path / "model"))
    if name.endswith("index.json"):
        (folder / "model.safetensors").unlink()
    path = no_file(folder / name, kind)
    speculative = {"method": "eagle", "num_speculative_tokens": 2} if "eagle" in name else None
    kind_of_error = WeightsError if "safetensors" in name else ConfigError
    with pytest.raises(kind_of_error) as refused:
        LLM(folder, speculative_config=speculative, **SETTINGS)
    assert f"{str(path)!r} " in str(refused.value)
    assert "which is not there" in str(refused.value) or kind != "dangling"
