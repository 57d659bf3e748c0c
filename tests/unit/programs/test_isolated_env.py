"""The isolating environment: what it asks for, and of whom."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from pytest_cudafork.programs.isolated_env import (
    READERS,
    TOKENIZERS,
    changes,
    isolated_env,
)
from pytest_cudafork.settings import environment
from pytest_cudafork.settings.environment import COMMON_METHOD, VLLM_METHOD

METHODS = (VLLM_METHOD, COMMON_METHOD)


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the variables is set."""
    for name in (*METHODS, TOKENIZERS, environment.VISIBLE_GPUS):
        monkeypatch.delenv(name, raising=False)


def test_it_asks_for_spawn_and_keeps_everything_else() -> None:
    env = isolated_env()
    asked = {VLLM_METHOD: "spawn", COMMON_METHOD: "spawn", TOKENIZERS: "false"}
    assert env == {**os.environ, **asked}
    assert env.changed == {name: (None, text) for name, text in asked.items()}


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_any_method_can_be_asked_for(method: str) -> None:
    env = isolated_env(method=method)
    assert [env[name] for name in METHODS] == [method, method]


def test_no_method_leaves_the_word_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VLLM_METHOD, "fork")
    env = isolated_env(method=None)
    assert env[VLLM_METHOD] == "fork"
    assert COMMON_METHOD not in env


def test_the_gpus_are_those_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isolated_env().honored[environment.VISIBLE_GPUS].startswith("not set; read by the CUDA")
    monkeypatch.setenv(environment.VISIBLE_GPUS, "3")
    env = isolated_env()
    assert env[environment.VISIBLE_GPUS] == "3"
    assert env.honored[environment.VISIBLE_GPUS].startswith("the CUDA driver")


def test_more_variables_come_last_and_none_takes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER", "x")
    env = isolated_env(TOKENIZERS_PARALLELISM="true", OTHER=None, NEW="1", MISSING=None)
    assert (env[TOKENIZERS], env["NEW"], "OTHER" in env) == ("true", "1", False)
    assert env.changed["OTHER"] == ("x", None)


def test_another_base_can_be_given() -> None:
    assert set(isolated_env(base={"A": "1"})) == {"A", *METHODS, TOKENIZERS}


def test_it_says_who_heeds_each_variable() -> None:
    honored = isolated_env().honored
    assert set(honored) == set(READERS)
    assert "vLLM" in honored[VLLM_METHOD]
    assert "multiprocessing reads no variable" in honored[COMMON_METHOD]


def test_python_heeds_none_of_them() -> None:
    """What ``honored`` says of Python is so: its start method is its default."""
    code = (
        "import multiprocessing as m; print(m.get_start_method() == m.get_all_start_methods()[0])"
    )
    for method in ("fork", "spawn"):
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env=isolated_env(method=method), stdout=subprocess.PIPE)
        assert done.stdout == b"True\n"


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"method": "thread"}, ValueError, "'thread' is no start method: use one of fork"),
        ({"A": 1}, TypeError, "the variable A is to be 1: a variable holds a text"),
        ({"A": "x\0y"}, ValueError, "no environment can hold that"),
        ({"A=B": "x"}, ValueError, "no environment can hold that"),
        ({"base": 3}, TypeError, "base=3: variables are given as a dict"),
        ({"base": {"A": 1}}, TypeError, "the variable A is to be 1: a variable holds a text"),
        ({"base": {3: "x"}}, TypeError, "the name of a variable is a text, not 3"),
    ],
)
def test_what_no_environment_holds_is_told(
    options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        isolated_env(**options)


def test_what_the_base_takes_away_is_not_set() -> None:
    assert isolated_env(method=None, base={"A": "1", "B": None}).keys() == {
        "A",
        "TOKENIZERS_PARALLELISM",
    }


def test_changes_name_both_values() -> None:
    before, after = {"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "4", "d": "5"}
    assert changes(before, after) == {"b": ("2", "4"), "c": ("3", None), "d": (None, "5")}
