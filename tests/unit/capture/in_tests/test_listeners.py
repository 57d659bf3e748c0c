"""Who listens under which value of the option."""

from __future__ import annotations

import contextlib

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.in_tests.listeners import Watching  # noqa: E402
from pytest_cudafork.capture.interface.seen import Listener, watch_in_force  # noqa: E402
from pytest_cudafork.capture.stand_ins.capturing import graphs  # noqa: E402


@pytest.mark.parametrize(("how", "judges"), [("check", True), ("all", True), ("audit", False)])
def test_the_recorder_comes_first_and_others_last(how: str, judges: bool) -> None:
    other = Listener()
    watching = Watching(how, other)
    assert watching.watch.listeners[0] is watching.recorder
    assert watching.watch.listeners[-1] is other
    assert (watching.judge is not None) is judges
    assert watching.take() == {}
    with watching.in_force("a test"):
        assert watch_in_force() is watching.watch
        assert watching.watch.test == "a test"
    assert watch_in_force() is None


def test_what_lines_did_in_one_test_says_nothing_of_a_graph_in_the_next() -> None:
    def read(number: int) -> int:
        return int(torch.tensor([number]).max().item())

    def run(number: float, *, captured: bool) -> None:
        x, made = torch.ones(2), graphs.CUDAGraph()
        with graphs.graph(made) if captured else contextlib.nullcontext():
            x * number + 7
        if captured:
            read(5)
            made.replay()

    def suspicions(*tests: str) -> int:
        watching, first = Watching("check"), True
        for test in tests:
            with watching.in_force(test):
                if first:
                    read(7)
                run(2.0 if first else 3.0, captured=not first)
            first = False
        return len(watching.take().get("suspicions", []))

    assert suspicions("one", "one") == 2
    assert suspicions("one", "two") == 0
