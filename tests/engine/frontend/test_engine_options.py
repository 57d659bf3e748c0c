"""The options that all commands have: each is a setting, and none that was not given is set."""

from __future__ import annotations

import argparse
import dataclasses

import pytest

from sample_engine.config import EngineConfig
from sample_engine.frontend.engine_options import add_engine_options, engine_settings


def parsed(*arguments: str) -> argparse.Namespace:
    """What the options come to for a command that has no others."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_engine_options(parser)
    parser.add_argument("--max-model-len", type=int)
    return parser.parse_args(arguments)


def test_what_is_not_given_keeps_its_default() -> None:
    assert engine_settings(parsed()) == {}
    assert engine_settings(parsed("--max-model-len=3"), "max_model_len") == {"max_model_len": 3}


def test_each_is_a_setting_of_the_engine() -> None:
    known = {field.name for field in dataclasses.fields(EngineConfig)}
    assert set(vars(parsed())) <= known


def test_asynchronous_steps_are_a_word_by_itself() -> None:
    assert engine_settings(parsed("--async-scheduling")) == {"async_scheduling": True}


@pytest.mark.parametrize("name", ["speculative", "kv-transfer"])
def test_objects_are_json(name: str) -> None:
    option = f"--{name}-config"
    settings = engine_settings(parsed(option, '{"a": [1, null]}'))
    assert settings == {f"{name.replace('-', '_')}_config": {"a": [1, None]}}
    for text, words in (
        ("{", "is not JSON"),
        ("3", "is not a JSON object"),
        ('{"a":' * 20000, "is not JSON (too deep)"),
    ):
        with pytest.raises(argparse.ArgumentError) as caught:
            parsed(option, text)
        assert words in str(caught.value)
        assert len(str(caught.value)) < 300
