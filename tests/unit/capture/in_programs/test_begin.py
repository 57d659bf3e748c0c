"""A look at captures that lasts as long as its process, and what is written down when."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture import choose  # noqa: E402
from pytest_cudafork.capture.in_programs import begin  # noqa: E402
from pytest_cudafork.capture.stand_ins.capturing import graphs  # noqa: E402
from pytest_cudafork.settings import environment  # noqa: E402

WHERE = "test_begin.py"


class _Program:
    """A watched program that is this process, without a GPU."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []
        self.captures = begin.ProgramCaptures("check")

    def end(self) -> None:
        self.captures._for_ever.close()
        atexit.unregister(self.captures.tell_all)


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Program]:
    made = _Program()
    watch = SimpleNamespace(observer=SimpleNamespace(note_captures=made.found.append))
    monkeypatch.setattr(begin, "current_watch", lambda: watch)
    monkeypatch.setattr(choose, "why_no_gpu", lambda: "no GPU")
    # What is put in its place for as long as the process lasts is taken back here.
    monkeypatch.setattr(graphs.CUDAGraph, "capture_begin", graphs.CUDAGraph.capture_begin)
    made.captures._enter(torch)
    yield made
    made.end()


def stale() -> tuple[Any, Any]:
    """Return lengths, and a graph that reads a plan which was made of them before its capture."""
    lengths, graph = torch.tensor([3, 4]), torch.cuda.CUDAGraph()
    plan = lengths * 2
    with torch.cuda.graph(graph):
        graph.out = plan + 1  # lives as long as the graph
    graph.plan = plan
    return lengths, graph


def test_what_is_found_is_written_down_with_the_next_event_and_at_the_end(
    program: _Program,
) -> None:
    lengths, graph = stale()
    lengths.fill_(9)
    for _ in range(3):
        graph.replay()
    captured, new = program.found  # a capture at its end, and what is new, once
    assert captured == {"captured": 1}
    assert len(new["errors"]) == 1
    program.captures.tell_all()
    assert sum(found.get("replays", 0) for found in program.found) == 3
    [error] = [each for found in program.found for each in found.get("errors", [])]
    assert error["kind"] == "stale-data"
    assert any(WHERE in where for _, where in error["lines"])
    assert sum(found.get("judged", 0) for found in program.found) == 1


def test_what_is_found_after_the_last_replay_is_written_down_at_once(program: _Program) -> None:
    """A child of multiprocessing ends without atexit."""
    pool, x = torch.cuda.graph_pool_handle(), torch.ones(1000)
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first, pool=pool):
        first.out = (x * 2) + 1
    with torch.cuda.graph(second, pool=pool):
        second.out = x * 3
    second.replay()
    first.replay()
    assert not any(found.get("errors") for found in program.found)
    second.out.sum()
    [error] = [each for found in program.found for each in found.get("errors", [])]
    assert error["kind"] == "overwritten-result"
    second.out.sum()
    program.captures.tell_all()
    assert sum(len(found.get("errors", [])) for found in program.found) > 0


def test_a_program_without_findings_writes_no_errors(program: _Program) -> None:
    lengths, graph = stale()
    graph.replay()
    program.captures.tell()
    assert not any(found.get("errors") for found in program.found)
    assert lengths.tolist() == [3, 4]


def test_what_cannot_be_judged_is_counted_and_written_once_for_each_reason() -> None:
    counts = begin._Counts()
    counts.add({"not_judged": {"a collective": 1}, "judged": 2})
    assert counts.is_news
    assert counts.take() == {"not_judged": {"a collective": 1}, "judged": 2}
    counts.add({"not_judged": {"a collective": 1}})
    counts.add({"not_judged": {"a collective": 2}})
    assert not counts.is_news
    assert counts.take() == {"not_judged": {"a collective": 3}}
    assert counts.take() == {}


def test_a_forked_child_does_not_count_what_its_parent_has_not_written_down(
    program: _Program,
) -> None:
    _, graph = stale()
    for _ in range(3):
        graph.replay()
    child = os.fork()
    if child == 0:
        try:
            del program.found[:]
            graph.replay()
            program.captures.tell_all()
            os._exit(sum(found.get("replays", 0) for found in program.found))
        finally:
            os._exit(99)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 1


def test_a_capture_of_another_thread_is_said_to_be_unseen_once(program: _Program) -> None:
    def work() -> None:
        for _ in range(2):
            stale()[1].replay()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert program.found == [{"elsewhere": True}]


def test_a_replay_of_another_thread_is_said_to_be_unseen(program: _Program) -> None:
    _, graph = stale()
    thread = threading.Thread(target=graph.replay)
    thread.start()
    thread.join()
    assert {"elsewhere": True} in program.found


def test_torch_that_is_executed_again_changes_nothing(program: _Program) -> None:
    before = program.captures._watching
    program.captures._enter(torch)
    assert program.captures._watching is before


def test_a_look_that_cannot_be_set_up_is_written_down_and_the_program_runs_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = _Program()
    watch = SimpleNamespace(observer=SimpleNamespace(note_captures=broken.found.append))
    monkeypatch.setattr(begin, "current_watch", lambda: watch)
    monkeypatch.setattr(choose, "why_no_gpu", lambda: None)
    monkeypatch.setattr(torch.cuda.graphs, "CUDAGraph", type("G", (), {"__module__": "torch"}))
    for _ in range(2):  # torch was executed again
        broken.captures._enter(torch)
    broken.end()
    [found] = broken.found
    assert found["broken"].startswith("AttributeError: ")
    assert "capture_begin" in found["broken"]


def test_nothing_begins_without_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[str] = []
    monkeypatch.setattr(begin.ProgramCaptures, "begin", lambda self: began.append(self._how))
    monkeypatch.delenv(environment.CAPTURES, raising=False)
    begin.begin_inherited()
    assert began == []
    monkeypatch.setenv(environment.CAPTURES, "all")
    written: list[dict[str, Any]] = []
    watch = SimpleNamespace(observer=SimpleNamespace(settings=SimpleNamespace(device="sm_90")))
    monkeypatch.setattr(begin, "current_watch", lambda: watch)
    monkeypatch.setattr(begin, "_write", written.append)
    begin.begin_inherited()
    assert began == ["all"]
    assert written == [{"asked": "sm_90"}]


def test_it_begins_when_torch_has_been_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting: list[tuple[str, Any]] = []
    monkeypatch.setattr(begin, "after_import", lambda name, call: waiting.append((name, call)))
    captures = begin.ProgramCaptures("check")
    captures.begin()
    assert waiting == [("torch", captures._enter)]


def test_a_process_that_is_not_watched_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(begin, "current_watch", lambda: None)
    begin._write({"elsewhere": True})
    begin.ProgramCaptures("check").tell()
