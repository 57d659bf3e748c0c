"""Who hears of captures and replays, in which order, and what is told when they fail."""

from __future__ import annotations

import contextlib
import contextvars
import gc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pytest_cudafork.capture.interface.seen import (
    Listener,
    SeenCapture,
    Watch,
    suspended,
    watch_in_force,
)


class Graph:
    """Stands for a graph, and for what captures it."""


class Log(Listener):
    """Writes down what it hears."""

    def __init__(self, log: list[str], name: str = "", *, takes: bool = False) -> None:
        self._log, self._name, self._takes = log, name, takes

    def on_capture_begin(self, capture: SeenCapture) -> None:
        self._log.append(f"{self._name}begin {capture.number} {capture.backend} {capture.test}")

    def on_capture_closing(self, capture: SeenCapture) -> None:
        self._log.append(f"{self._name}closing")

    def on_capture_end(self, capture: SeenCapture) -> None:
        self._log.append(f"{self._name}end {capture.captured}")

    def on_replay_begin(self, capture: SeenCapture) -> None:
        self._log.append(f"{self._name}replay {capture.replays}")

    def on_replay_end(self, capture: SeenCapture, failed: BaseException | None) -> None:
        self._log.append(f"{self._name}replayed {type(failed).__name__}")

    def takes_replay(self, capture: SeenCapture) -> bool:
        return self._takes

    def on_reset(self, capture: SeenCapture) -> None:
        self._log.append(f"{self._name}reset {capture.captured}")

    def on_own_check_begin(self) -> None:
        self._log.append(f"{self._name}own check begins")

    def on_own_check(self) -> None:
        self._log.append(f"{self._name}own check")


def captured(watch: Watch, graph: Graph, ran: list[Any]) -> SeenCapture:
    maker = Graph()
    watch.begun(maker, "software")
    watch.closing(maker)
    watch.captured(maker, graph, lambda graph: ran.append(graph), "pool")
    found = watch.capture_of(graph)
    assert found is not None
    return found


def test_a_capture_and_its_replays_are_told_in_order() -> None:
    log: list[str] = []
    ran: list[Any] = []
    watch, graph = Watch([Log(log)]), Graph()
    watch.test = "a test"
    seen = captured(watch, graph, ran)
    assert seen.captured
    assert seen.pool == "pool"
    assert seen.where.startswith(__file__)
    watch.replay(graph, lambda: log.append("runs"))
    seen.run()
    assert ran == [graph]
    watch.reset(graph)
    assert log == [
        "begin 1 software a test", "closing", "end True", "replay 0", "runs", "replayed NoneType",
        "reset False",
    ]  # fmt: skip
    watch.replay(graph, lambda: log.append("runs, and nobody knows it"))
    watch.reset(graph)
    assert log[-1] == "runs, and nobody knows it"
    seen.run()
    assert ran == [graph]


def test_what_closes_is_told_in_the_other_order_and_failures_pass() -> None:
    log: list[str] = []
    watch, graph = Watch([Log(log, "a "), Log(log, "b ")]), Graph()
    captured(watch, graph, [])
    assert log[2:4] == ["b closing", "a closing"]
    log.clear()

    def fails() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        watch.replay(graph, fails)
    assert log == ["a replay 0", "b replay 0", "b replayed KeyError", "a replayed KeyError"]
    log.clear()
    maker = Graph()
    watch.begun(maker, "cuda")
    watch.closing(maker)
    watch.failed(maker)
    watch.failed(maker)
    watch.closing(maker)
    watch.captured(maker, graph, print, None)
    assert log[2:] == ["b closing", "a closing", "a end False", "b end False"]


def test_a_listener_may_stand_in_for_a_replay() -> None:
    log: list[str] = []
    watch, graph = Watch([Log(log, takes=True), Log(log)]), Graph()
    seen = captured(watch, graph, [])
    watch.replay(graph, lambda: log.append("runs"))
    assert "runs" not in log
    assert seen.replays == 1


def test_a_graph_that_is_gone_is_held_by_nobody() -> None:
    watch, graph = Watch([]), Graph()
    seen = captured(watch, graph, [])
    del graph
    gc.collect()
    assert seen._graph() is None
    seen.run()


def test_what_a_check_of_ours_captures_is_not_told_but_that_it_ran_is() -> None:
    log: list[str] = []
    watch, graph, maker = Watch([Log(log)]), Graph(), Graph()
    with suspended():
        assert watch_in_force() is None
    with watch.in_force():
        assert watch_in_force() is watch
        with suspended(), suspended():
            assert not watch.hears
            watch.begun(maker, "software")
            watch.captured(maker, graph, print, None)
            watch.replay(graph, lambda: log.append("runs"))
        assert watch.hears
    assert watch_in_force() is None
    assert log == ["own check begins", "runs", "own check"]


def test_a_listener_that_says_nothing_hears_all() -> None:
    watch, graph = Watch([Listener()]), Graph()
    captured(watch, graph, [])
    ran: list[int] = []
    watch.replay(graph, lambda: ran.append(1))
    watch.reset(graph)
    with contextlib.suppress(KeyError), watch.in_force(), suspended():
        raise KeyError
    assert ran == [1]


@pytest.mark.parametrize(("backend", "waits"), [("cuda", 1), ("software", 0)])
def test_a_gpu_is_waited_for(monkeypatch: pytest.MonkeyPatch, backend: str, waits: int) -> None:
    torch = pytest.importorskip("torch")
    waited: list[None] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append(None))
    SeenCapture(1, backend, "").wait()
    assert len(waited) == waits


def test_a_watch_is_over_its_thread_in_any_context_and_over_no_other_thread() -> None:
    watch = Watch([])
    with watch.in_force(), ThreadPoolExecutor(1) as other:
        assert watch.is_in_force
        assert contextvars.Context().run(watch_in_force) is watch
        copied = contextvars.copy_context()
        assert other.submit(copied.run, watch_in_force).result() is None
    assert not watch.is_in_force
