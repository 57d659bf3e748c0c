"""Tests of the fork server's session, run in this process with a server that forks nothing."""

from __future__ import annotations

import gc
import os
import random
import sys
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.isolate import coverage_data
from pytest_cudafork.isolate.child import capture_files, items, rehearsal, server_session
from pytest_cudafork.isolate.child.server_session import CollectedTests
from pytest_cudafork.isolate.session.request import session_request
from pytest_cudafork.process import child
from pytest_cudafork.process.protocol.server_messages import CannotFork
from pytest_cudafork.process.randomness import Randomness

SOURCE = """
def test_a(): pass
def test_b(): pass
"""


class _Server:
    """A fork server, as far as the session uses it."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.settings = SimpleNamespace(data=request)
        self.outputs = (-1, -2)
        self.spare_cores = True
        self.prepared: CollectedTests | None = None
        self.why_not: CannotFork | None = None
        self.about: dict[str, Any] = {}

    def ready(self, why_not: CannotFork, **about: Any) -> None:
        self.why_not, self.about = why_not, about

    def serve(self, prepared: CollectedTests, **about: Any) -> None:
        self.prepared, self.about = prepared, about


class _Process:
    """What this process seems to be: its CUDA, and its threads."""

    def __init__(self) -> None:
        self.verdict, self.why = "clean", ""
        self.threads = [threading.main_thread()]

    def state(self) -> Any:
        """Return what CUDA is here."""
        return SimpleNamespace(verdict=SimpleNamespace(value=self.verdict), why=self.why)

    def module(self) -> Any:
        """Return what stands for ``threading``."""
        return SimpleNamespace(
            Thread=threading.Thread,
            enumerate=lambda: list(self.threads),
            main_thread=threading.main_thread,
        )

    def start_thread(self) -> None:
        """Start one, as it seems."""
        self.threads.append(threading.Thread(name="the helper"))


@pytest.fixture(autouse=True)
def process(session_undone: None, monkeypatch: pytest.MonkeyPatch) -> _Process:
    """A process that may be forked; what a session changes in this one is undone."""
    made = _Process()
    monkeypatch.setattr(server_session, "current_state", made.state)
    monkeypatch.setattr(server_session, "threading", made.module())
    return made


class _Rehearsal:
    """How often a test was rehearsed."""

    runs: list[int]

    def __init__(self, session: pytest.Session) -> None:
        self.runs = []

    def run(self, times: int) -> None:
        self.runs.append(times)


class _Capture:
    """The capture of a child."""

    def __init__(self, config: pytest.Config, stdout: int, stderr: int) -> None:
        self.outputs = (stdout, stderr)
        self.renewed = 0

    def renew(self) -> None:
        self.renewed += 1


@pytest.fixture
def server(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> _Server:
    """The server for a file of tests."""
    monkeypatch.setattr(rehearsal, "Rehearsal", _Rehearsal)
    monkeypatch.setattr(capture_files, "ForkedCapture", _Capture)
    path = pytester.makepyfile(test_it=SOURCE)
    parent = pytester.parseconfig(str(pytester.path))
    return _Server(session_request(parent, [str(path)]))


def _prepare(server: Any) -> Any:
    """Prepare the server; return what its children use, if it can be forked."""
    server_session.prepare(server)
    return server.prepared


def test_what_the_parent_collects_is_ready_to_be_run(server: _Server) -> None:
    frozen_before = gc.get_freeze_count()
    tests = _prepare(server)
    assert server.why_not is None
    assert server.about == {"tests": 2, "errors": []}
    assert [item.name for item in tests.items._items] == ["test_a", "test_b"]
    assert tests.items._finder._by_name is not None  # so no child makes the index
    assert b"_CUDAFORK_ISOLATED=1" in tests.items.environment.split(b"\0")
    assert tests._rehearsal.runs == [server_session._REHEARSALS]
    assert tests._capture.outputs == server.outputs
    assert gc.get_freeze_count() > frozen_before


def test_what_is_to_be_collected_and_is_not_there_is_why_it_cannot_be_forked(
    server: _Server,
) -> None:
    server.settings.data["targets"] = ["nowhere.py"]
    assert _prepare(server) is None
    assert server.why_not is not None
    assert "could not collect: file or directory not found: nowhere.py" in server.why_not.reason


# pytest leaves /dev/null open where it cannot begin
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_server_that_cannot_make_a_temporary_file_says_so_and_cannot_be_forked(
    server: _Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    assert _prepare(server) is None
    assert server.why_not is not None
    assert server.why_not.text.startswith(
        "the fork server could not begin: no temporary file can be made: [Errno 2] No such file"
    )


@pytest.mark.parametrize("spare_cores", [True, False])
def test_a_child_gets_what_must_be_its_own_and_practices_while_it_waits(
    server: _Server, monkeypatch: pytest.MonkeyPatch, spare_cores: bool
) -> None:
    armed: list[int] = []
    monkeypatch.setattr(child, "arm_stacks", armed.append)
    server.spare_cores = spare_cores
    tests = _prepare(server)
    tests.begin_child(7)
    assert tests._capture.renewed == 1
    assert armed[-1] == 7
    assert tests._rehearsal.runs[1:] == ([1] if spare_cores else [])
    assert tests.items.coverage is None


def test_a_child_runs_the_tests_that_it_is_told(
    server: _Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(items, "run", lambda *args: args)
    tests = _prepare(server)
    channel: Any = object()
    assert tests.job_for(channel, 7)() == (tests.items, channel)


def test_a_child_goes_on_with_the_seed_that_a_test_file_has_set(
    server: _Server, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "arm_stacks", lambda stacks_fd: None)
    before = random.getstate()
    try:
        pytester.makepyfile(test_it=f"import random; random.seed(5)\n{SOURCE}")
        tests = _prepare(server)
        random.seed(6)
        tests.begin_child(7)
        drawn = random.random()
        random.seed(5)
        assert drawn == random.random()
    finally:
        random.setstate(before)


class _Coverage:
    """What measures in a process."""

    def __init__(self, measured: dict[str, Any] | None = None) -> None:
        self.measured = measured
        self.first: list[Any] = []

    def take(self) -> Any:
        return self.measured

    def first_adds(self, data: Any, once: Any) -> None:
        self.first.append((data, once.take()))


def test_the_first_child_adds_what_was_measured_in_collection(
    server: _Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "arm_stacks", lambda stacks_fd: None)
    begun = [_Coverage({"lines": []}), _Coverage(), _Coverage()]
    waiting = list(begun)
    monkeypatch.setattr(coverage_data, "begin", lambda *wanted: waiting.pop(0))
    tests = _prepare(server)
    for one in begun[1:]:
        tests.begin_child(7)
        assert tests.items.coverage is one
    assert [one.first for one in begun] == [[], [({"lines": []}, True)], [({"lines": []}, False)]]


def test_files_that_are_left_out_are_not_imported(
    server: _Server, pytester: pytest.Pytester
) -> None:
    path = pytester.makepyfile(test_other="import os; os.environ['IMPORTED'] = '1'")
    request = server.settings.data
    request["targets"].append(str(path))
    request["left_out"] = (str(path),)
    _prepare(server)
    assert server.about["tests"] == 2
    assert "IMPORTED" not in os.environ


def test_errors_of_collection_are_told_in_short(server: _Server, pytester: pytest.Pytester) -> None:
    request = server.settings.data
    for number in range(server_session._MOST_ERRORS + 2):
        path = pytester.makepyfile(**{f"test_{number}": f"raise ValueError('x' * {10_000})"})
        request["targets"].append(str(path))
    _prepare(server)
    errors = server.about["errors"]
    assert len(errors) == server_session._MOST_ERRORS
    assert {len(one) for one in errors} == {server_session._LONGEST_TEXT}


def _with_plugin(server: _Server, monkeypatch: pytest.MonkeyPatch, **hooks: Any) -> None:
    """Let a plugin take part whose hooks are these functions."""
    module: Any = type(sys)("their_plugin")
    vars(module).update(hooks)
    monkeypatch.setitem(sys.modules, "their_plugin", module)
    monkeypatch.setenv("PYTEST_PLUGINS", "their_plugin")


def test_a_file_that_starts_a_thread_is_why_it_cannot_fork(
    server: _Server, pytester: pytest.Pytester, process: _Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pytest_pycollect_makeitem(name: str) -> None:
        if name == "test_b":
            process.start_thread()

    _with_plugin(server, monkeypatch, pytest_pycollect_makeitem=pytest_pycollect_makeitem)
    assert _prepare(server) is None
    path = str(pytester.path / "test_it.py")
    assert server.why_not == CannotFork(path, "threads", "threads run (the helper)")
    assert server.about == {"tests": 2, "errors": []}


def test_a_plugin_that_uses_cuda_is_why_and_no_file(
    server: _Server, process: _Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pytest_sessionstart() -> None:
        process.verdict, process.why = "initialized", "cuInit was called"

    _with_plugin(server, monkeypatch, pytest_sessionstart=pytest_sessionstart)
    assert _prepare(server) is None
    assert server.why_not == CannotFork("", "cuda", "CUDA is initialized: cuInit was called")


def test_what_happens_after_collection_counts_too(
    server: _Server, process: _Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = {"pytest_collection_finish": process.start_thread}
    _with_plugin(server, monkeypatch, **hooks)
    assert _prepare(server) is None
    assert server.why_not == CannotFork("", "threads", "threads run (the helper)")


def test_random_numbers_are_looked_at_before_the_first_file(server: _Server) -> None:
    tests = _prepare(server)
    assert isinstance(tests._seeds, Randomness)
    assert tests._seeds._python is None  # nobody has seeded
