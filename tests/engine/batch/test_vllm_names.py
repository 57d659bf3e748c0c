"""Names of vLLM: what asks for nothing is taken, all else is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.batch.vllm_names import ENGINE, SAMPLING, take_out
from sample_engine.config import EngineConfig


@pytest.mark.parametrize("names", [SAMPLING, ENGINE], ids=["sampling", "engine"])
def test_each_name_is_taken_with_what_asks_for_nothing(names: Any) -> None:
    for name, values in names.items():
        for value in values:
            assert take_out({name: value, "other": 1}, names) == ({"other": 1}, []), name
        (line,) = take_out({name: object()}, names)[1]
        assert line.startswith(f"{name}=<object")


def test_numbers_are_compared_as_numbers_and_truth_is_none() -> None:
    assert take_out({"frequency_penalty": 0}, SAMPLING)[1] == []
    assert take_out({"frequency_penalty": False}, SAMPLING)[1] != []
    assert take_out({"detokenize": 1}, SAMPLING)[1] != []


def test_what_the_engine_has_itself_is_not_among_them() -> None:
    assert not SAMPLING.keys() & {field.name for field in dataclasses.fields(SamplingParams)}
    assert not ENGINE.keys() & {field.name for field in dataclasses.fields(EngineConfig)}
