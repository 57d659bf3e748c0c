"""Tests of the choice of a method of isolation."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_cudafork.check.start_method import ProcessState
from pytest_cudafork.health.fitness import Unfit
from pytest_cudafork.isolate import policy
from pytest_cudafork.isolate.policy import IsolationConfig, Method
from pytest_cudafork.settings.markers import Marks

CLEAN = ProcessState()


INITIALIZED = ProcessState(cuda="initialized")


POISONED = ProcessState(cuda="poisoned")


BLIND = ProcessState(cuda="not observable")


THREADED = ProcessState(threads=2)


def choose(marks: Marks, config: IsolationConfig, state: ProcessState) -> Method | None:
    return policy.choose(marks, config, lambda: state)


def never_asked() -> ProcessState:
    raise AssertionError("nothing is forked from this process")


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_the_process_is_not_asked_where_nothing_is_forked_from_it(method: str) -> None:
    marks = Marks(isolated=True, method=method)
    assert policy.choose(marks, IsolationConfig(), never_asked) == Method(method)
    with pytest.raises(AssertionError, match="nothing is forked"):
        policy.choose(Marks(isolated=True, method="fork"), IsolationConfig(), never_asked)


def test_unmarked_tests_stay_in_the_process() -> None:
    assert choose(Marks(), IsolationConfig(), CLEAN) is None


@pytest.mark.parametrize(
    ("state", "method"),
    [
        (CLEAN, "fork"),
        (THREADED, "forkserver"),
        (INITIALIZED, "forkserver"),
        (POISONED, "forkserver"),
        (BLIND, "forkserver"),
    ],
)
def test_auto_forks_only_a_clean_process_without_threads(state: ProcessState, method: str) -> None:
    chosen = choose(Marks(isolated=True), IsolationConfig(), state)
    assert chosen is not None
    assert chosen.name == method
    assert bool(chosen.why) == (method != "fork")


@pytest.mark.parametrize("state", [CLEAN, THREADED, INITIALIZED])
def test_spawn_only_beats_every_other_wish(state: ProcessState) -> None:
    marks = Marks(spawn_only=True, isolated=True, method="fork", timeout=5)
    assert choose(marks, IsolationConfig(every_test="fork"), state) == Method("spawn", 5)


@pytest.mark.parametrize("every_test", [None, "auto", "fork", "forkserver"])
def test_auto_never_forks_a_test_with_variables_of_its_own(every_test: str | None) -> None:
    marks = Marks(isolated=True, env=(("A", "1"),))
    assert choose(marks, IsolationConfig(every_test=every_test), CLEAN) == Method("spawn")


@pytest.mark.parametrize("state", [INITIALIZED, POISONED])
def test_a_fork_that_would_be_poisoned_is_refused_with_the_reason(state: ProcessState) -> None:
    method = choose(Marks(isolated=True, method="fork"), IsolationConfig(), state)
    assert method is not None
    assert "Nothing was forked" in method.refusal


@pytest.mark.parametrize("state", [CLEAN, THREADED, BLIND])
def test_a_fork_that_was_asked_for_is_done_otherwise(state: ProcessState) -> None:
    assert choose(Marks(isolated=True, method="fork"), IsolationConfig(), state) == Method("fork")


@pytest.mark.parametrize(
    "config",
    [
        IsolationConfig(debugger=True),
        IsolationConfig(inside=True),
        IsolationConfig(every_test="none"),
    ],
)
def test_nothing_is_isolated_under_the_debugger_or_twice(config: IsolationConfig) -> None:
    assert choose(Marks(spawn_only=True), config, CLEAN) is None


def test_a_marker_beats_the_session_and_its_time_limit() -> None:
    config = IsolationConfig(every_test="spawn", timeout=9)
    assert choose(Marks(), config, CLEAN) == Method("spawn", 9)
    assert choose(Marks(isolated=True), config, CLEAN) == Method("spawn", 9)
    marks = Marks(isolated=True, method="forkserver", timeout=1)
    assert choose(marks, config, CLEAN) == Method("forkserver", 1)


UNFIT = Unfit(1, "t.py::b", "the CUDA context is broken", recover=True)


def test_what_would_run_in_a_broken_process_gets_one_of_the_fork_server() -> None:
    config = IsolationConfig(unfit=UNFIT, timeout=9)
    chosen = choose(Marks(), config, INITIALIZED)
    why = "not here: the CUDA context is broken since t.py::b"
    assert chosen == Method("forkserver", 9, why=why, since="t.py::b")
    assert choose(Marks(spawn_only=True), config, INITIALIZED) == Method("spawn", 9)
    assert choose(Marks(left_alone=True), config, INITIALIZED) is None
    every = IsolationConfig(unfit=UNFIT, every_test="spawn")
    assert choose(Marks(), every, INITIALIZED) == Method("spawn")
    marked = choose(Marks(isolated=True), config, INITIALIZED)
    assert marked is not None
    assert (marked.name, marked.since) == ("forkserver", "")


@pytest.mark.parametrize("changes", [{"debugger": True}, {"every_test": "none"}])
def test_where_nothing_is_isolated_a_broken_process_keeps_its_tests(
    changes: dict[str, Any],
) -> None:
    assert choose(Marks(), IsolationConfig(unfit=UNFIT, **changes), INITIALIZED) is None


def test_another_test_of_a_group_runs_as_the_first_with_its_own_time_limit() -> None:
    first = Method("fork", 5.0, why="a reason")
    config = IsolationConfig(timeout=5.0)
    assert policy.for_another(first, Marks(), config) is first
    limited = policy.for_another(first, Marks(isolated=True, timeout=2.0), config)
    assert limited == Method("fork", 2.0, why="a reason")
