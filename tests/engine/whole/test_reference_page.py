"""The pages of the engine agree with its code, and its public names are pinned."""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path

import pytest

import sample_engine
from sample_engine import errors
from sample_engine.__main__ import _parser
from sample_engine.batch.outputs import CompletionOutput, Logprob, RequestOutput
from sample_engine.batch.request import FinishReason
from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.batch.vllm_names import ENGINE, SAMPLING
from sample_engine.config import EngineConfig, WorkerMethod

PROJECT = Path(__file__).resolve().parents[3]
REFERENCE = PROJECT / "docs" / "reference"
PAGES = [REFERENCE / "sample_engine.md", *sorted((REFERENCE / "engine").glob("*.md"))]
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)

PUBLIC = {
    "LLM",
    "BackendUnavailableError",
    "CUDAGraphMode",
    "CompletionOutput",
    "ConfigError",
    "EngineConfig",
    "EngineDeadError",
    "EngineError",
    "FinishReason",
    "GraphCaptureError",
    "KVTransferConfig",
    "KVTransferError",
    "Logprob",
    "MessageError",
    "NotFiniteError",
    "PromptError",
    "RankLostError",
    "RemoteError",
    "RequestOutput",
    "SamplingParams",
    "WeightsError",
    "WorkerMethod",
}


def rows(title: str) -> dict[str, str]:
    """The first table below a heading: first cell, without its marks, to second."""
    assert TEXT.count(f"\n## {title}\n") == 1, title
    section = TEXT.partition(f"## {title}\n")[2].partition("\n## ")[0]
    table = re.search(r"(?:^\|.*\n)+", section, re.M)
    assert table is not None, title
    cells = [line.strip("|\n ").split(" | ") for line in table[0].splitlines()[2:]]
    return {row[0].strip("`"): row[1].strip("`") for row in cells}


def defaults(kind: type) -> dict[str, str]:
    """Fields and defaults of a configuration, as the reference writes them."""
    found = {}
    for field in dataclasses.fields(kind):
        default = field.default
        text = str(default.value) if isinstance(default, WorkerMethod) else default
        text = getattr(text, "value", text)
        found[field.name] = f'"{text}"' if isinstance(text, str) else repr(text)
    return found


def test_the_public_names_are_pinned_and_can_be_had() -> None:
    assert set(sample_engine.__all__) == PUBLIC
    for name in PUBLIC:
        assert getattr(sample_engine, name).__name__ == name
    assert set(dir(sample_engine)) >= PUBLIC
    assert not hasattr(sample_engine, "no_such_name")


def test_the_reference_has_each_setting_with_its_default_and_no_other() -> None:
    assert rows("Settings") == defaults(EngineConfig)


def test_the_reference_has_each_sampling_parameter_with_its_default_and_no_other() -> None:
    assert rows("`SamplingParams`") == defaults(SamplingParams)


@pytest.mark.parametrize("kind", [RequestOutput, CompletionOutput, Logprob])
def test_the_reference_has_each_field_of_an_output_and_no_other(kind: type) -> None:
    fields = {field.name for field in dataclasses.fields(kind)}
    computed = {name for name, value in vars(kind).items() if isinstance(value, property)}
    assert set(rows(f"`{kind.__name__}`")) == fields | computed


def test_the_reference_has_each_reason_of_an_end() -> None:
    for reason in FinishReason:
        assert f"`{reason.name}`" in TEXT


def test_the_reference_has_each_method_and_no_other() -> None:
    public = {name for name in vars(sample_engine.LLM) if not name.startswith("_")}
    assert {row.partition("(")[0] for row in rows("`LLM`")} == public


def test_the_reference_has_each_start_method_and_no_other() -> None:
    assert list(rows("Start methods")) == [method.value for method in WorkerMethod]


def test_the_reference_has_each_error_and_no_other() -> None:
    assert set(rows("Errors")) == {*errors.__all__, "MessageError"}


def test_the_reference_has_each_option_and_no_other() -> None:
    options = {
        flag
        for action in _parser()._actions
        for flag in action.option_strings
        if flag.startswith("--") and flag != "--help"
    }
    assert set(rows("Command line")) == options


def test_the_reference_has_each_variable_that_the_engine_reads_and_no_other() -> None:
    constants = (
        node.value
        for path in (PROJECT / "sample_engine").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    read = {text for text in constants if re.fullmatch(r"SAMPLE_ENGINE_[A-Z_]+", text)}
    assert set(rows("Environment")) == read | {"CUDA_VISIBLE_DEVICES"}


def test_each_error_that_says_it_is_public_can_be_had() -> None:
    classes = {
        node.name
        for path in (PROJECT / "sample_engine").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(line) == "__module__ = 'sample_engine'" for line in node.body)
    }
    assert classes == {*errors.__all__, "MessageError"}


@pytest.mark.parametrize("name", sorted(errors.__all__))
def test_errors_travel_by_their_public_name(name: str) -> None:
    kind = getattr(errors, name)
    assert kind.__module__ == "sample_engine"
    assert getattr(sample_engine, name) is kind


def test_the_reference_has_each_name_of_vllm_that_is_taken_and_no_other() -> None:
    assert set(rows("Names of vLLM")) == {*SAMPLING, *ENGINE, "enforce_eager"}
