"""What the controller tells a worker on another host, and what that makes of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.baseline.culprit import Culprit
from pytest_cudafork.baseline.entries import Accepted
from pytest_cudafork.check import session
from pytest_cudafork.check.accepted import Terms
from pytest_cudafork.check.session import SESSION
from pytest_cudafork.hosts.told import KEY, message_for_worker, take_message
from pytest_cudafork.settings import environment

ENTRY = Accepted("touch", Culprit("a.py", "<module>", "touch()"))


class Acceptance:
    """What the baseline accepts in a process."""

    def __init__(self, terms: Terms | None = None) -> None:
        self.terms = terms

    def begin(self, terms: Terms) -> None:
        """Take the terms."""
        self.terms = terms


class Config:
    """A configuration with a command line and an ini file."""

    rootpath = "/there"
    inipath = None

    def __init__(self, watch: object, ini: dict[str, str] | None = None, **given: str) -> None:
        self.stash = {SESSION: SimpleNamespace(watch=watch)}
        self.option = SimpleNamespace(**given)
        self.ini = ini or {}

    def getini(self, name: str) -> str:
        """Return the ini file's value."""
        return self.ini.get(name, "")


def test_what_is_not_on_the_command_line_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_CUDA_FORK_CHECK", "touch")
    terms = Terms("/home", {ENTRY: "start"}, everything=True)
    config: Any = Config(
        SimpleNamespace(acceptance=Acceptance(terms)),
        {"cuda_fork_gpus": "2", "cuda_fork_ledger": "all.jsonl"},
        cuda_fork_device="phantom",
    )
    told = message_for_worker(config)
    variables = {"PYTEST_CUDA_FORK_CHECK": "touch", "PYTEST_CUDA_FORK_GPUS": "2"}
    assert {name: told["variables"].get(name) for name in variables} == variables
    assert "PYTEST_CUDA_FORK_DEVICE" not in told["variables"], "the worker has the command line"
    assert "PYTEST_CUDA_FORK_LEDGER" not in told["variables"], "files are written here"
    assert told["everything"] is True
    assert told["baseline"] == [[*ENTRY.to_list(), "start"]]


def test_without_check_and_baseline_there_is_little_to_tell() -> None:
    config: Any = Config(None)
    told = message_for_worker(config)
    assert (told["baseline"], told["everything"]) == (None, False)


@pytest.mark.parametrize("was_watched", [True, False])
def test_a_worker_takes_it(monkeypatch: pytest.MonkeyPatch, was_watched: bool) -> None:
    acceptance = Acceptance()
    watch = SimpleNamespace(acceptance=acceptance)
    config: Any = Config(watch if was_watched else None)
    baseline = [[*ENTRY.to_list(), "start"], ["no entry", "start"]]
    config.workerinput = {KEY: {"variables": {"A": "1"}, "baseline": baseline, "everything": False}}
    asked = []

    def begin_again(config: Any, variables: dict[str, str]) -> Any:
        asked.append(variables)  # as that does, it takes the watch that there is
        return SimpleNamespace(watch=watch)

    monkeypatch.setattr(session, "begin_again", begin_again)
    late = take_message(config)
    assert asked == [{"A": "1"}]
    assert acceptance.terms == Terms("/there", {ENTRY: "start"})
    assert bool(late) is not was_watched


def test_other_processes_are_told_nothing() -> None:
    config: Any = Config(None)
    assert take_message(config) == ""
    config.workerinput = {}
    assert take_message(config) == ""
    assert not environment.is_set("A")
