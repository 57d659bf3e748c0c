"""Replays that are counted, that do nothing, and whose inputs are others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.in_tests.listeners import Watching  # noqa: E402
from pytest_cudafork.capture.interface.seen import SeenCapture  # noqa: E402
from pytest_cudafork.capture.rerun.listener import Replays, TooManyReplaysError  # noqa: E402
from pytest_cudafork.capture.rerun.orders import CHANGED, IDLE, Counted, Order  # noqa: E402
from pytest_cudafork.capture.stand_ins.in_force import in_force  # noqa: E402
from tests.support.forked_work import do_in_child  # noqa: E402


@pytest.fixture
def replays() -> Iterator[Replays]:
    made = Replays()
    with in_force(), Watching("audit", made).in_force("a test"):
        yield made


class Step:
    """A graph with inputs of three kinds, an output of its own and one that is written in place."""

    def __init__(self) -> None:
        self.x = torch.tensor([1.0, 2.0, 3.0])
        self.index = torch.tensor([0, 1, 2])
        self.count = torch.tensor([5, 0, 7])
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = self.x[self.index] * 2
            self.count.add_(1)

    def __call__(self) -> Any:
        self.graph.replay()
        return self.out.tolist()


def test_replays_are_counted_for_each_test(replays: Replays) -> None:
    step = Step()
    assert step() == [2.0, 4.0, 6.0]
    assert step() == [2.0, 4.0, 6.0]
    assert replays.counted == Counted(replays=2)
    replays.begin(Order())
    assert replays.counted == Counted()


def test_a_test_that_changes_an_input_is_known(replays: Replays) -> None:
    step = Step()
    step()
    step.x.fill_(4)
    step()
    assert replays.counted == Counted(replays=2, changes=True)


def test_what_a_graph_changes_itself_is_no_change_of_the_test(replays: Replays) -> None:
    step = Step()
    for _ in range(3):
        step()
    assert step.count.tolist() == [8, 3, 10]
    assert not replays.counted.changes


def test_an_idle_replay_does_nothing_and_leaves_poison(replays: Replays) -> None:
    replays.begin(Order(IDLE, 10))
    step = Step()
    step()
    assert step.out.isnan().all()
    assert step.count.tolist() == [0, 1, 0]
    assert step.x.tolist() == [1.0, 2.0, 3.0]
    assert replays.counted == Counted(replays=1, spoiled=1)


def test_idle_replays_leave_the_same_each_time(replays: Replays) -> None:
    replays.begin(Order(IDLE, 10))
    step = Step()
    for _ in range(3):
        step()
        assert step.count.tolist() == [0, 1, 0]
    step.count.copy_(torch.tensor([0, 0, 4]))  # as a test may, between two
    step()
    assert step.count.tolist() == [1, 1, 0]


@pytest.mark.parametrize(
    ("how", "seen"),
    [(CHANGED, [[1.0, 2.0, 3.0], [-1.25, -0.75, -0.25]]), (IDLE, [[1.0, 2.0, 3.0]]), ("", [])],
)
def test_the_host_changes_nothing_that_a_gpu_may_still_read(
    replays: Replays, monkeypatch: pytest.MonkeyPatch, how: str, seen: list[list[float]]
) -> None:
    step, found = Step(), []
    monkeypatch.setattr(SeenCapture, "wait", lambda _: found.append(step.x.tolist()))
    replays.begin(Order(how, 10))
    step()
    assert found == seen
    assert step.x.tolist() == [1.0, 2.0, 3.0]


def test_inputs_are_others_while_a_graph_is_replayed_and_no_longer(replays: Replays) -> None:
    replays.begin(Order(CHANGED, 10))
    step = Step()
    answers = step()
    assert answers != [2.0, 4.0, 6.0]
    assert not step.out.isnan().any()
    assert step.x.tolist() == [1.0, 2.0, 3.0]
    assert step.index.tolist() == [0, 1, 2]
    assert step.count.tolist() == [6, 1, 8]
    assert replays.counted == Counted(replays=1, spoiled=1)


def test_a_replay_whose_inputs_cannot_be_changed_counts_as_it_is(replays: Replays) -> None:
    replays.begin(Order(CHANGED, 10))
    lengths, graph = torch.ones(3, dtype=torch.int64), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = lengths + 1
    graph.replay()
    assert out.tolist() == [2, 2, 2]
    assert replays.counted == Counted(replays=1)


def test_weights_and_caches_are_no_inputs(replays: Replays) -> None:
    weight, graph = torch.ones(1 << 19), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = weight.sum()
    weight.fill_(2)
    graph.replay()
    assert out.item() == 2 << 19
    assert not replays.counted.changes


@pytest.mark.parametrize("how", [IDLE, CHANGED])
def test_a_loop_of_spoiled_replays_ends(replays: Replays, how: str) -> None:
    replays.begin(Order(how, 5))
    step = Step()
    for _ in range(5):
        step()
    with pytest.raises(TooManyReplaysError, match="5 replays were spoiled"):
        step()


def test_what_other_threads_capture_and_replay_is_counted(replays: Replays) -> None:
    mine = Step()
    with ThreadPoolExecutor(1) as other:
        other.submit(mine).result()
        theirs = other.submit(Step).result()
    theirs()
    assert replays.counted == Counted(elsewhere=3)


def test_replays_of_forked_children_are_counted_and_spoiled(replays: Replays) -> None:
    replays.begin(Order())
    step = Step()
    step()

    def changes() -> None:
        step.x.fill_(4)
        step()
        step()

    do_in_child(changes)
    assert replays.counted == Counted(replays=3, changes=True)
    assert replays.counted == Counted(replays=3, changes=True)

    def poisoned() -> None:
        step()
        assert step.out.isnan().all()

    replays.begin(Order(IDLE, 10))
    do_in_child(poisoned)
    assert replays.counted == Counted(replays=1, spoiled=1)
    replays.close()


def test_a_child_that_outlives_its_test_counts_for_no_other(replays: Replays) -> None:
    replays.begin(Order())
    step = Step()
    begun, go_on = os.pipe(), os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.read(go_on[0], 1)
            step()
            os.write(begun[1], b"x")
        finally:
            os._exit(0)
    os.close(begun[1])  # so that a child that fails is not waited for
    replays.begin(Order())
    os.write(go_on[1], b"x")
    assert os.read(begun[0], 1) == b"x"
    os.waitpid(pid, 0)
    assert replays.counted == Counted()
    replays.close()
    for each in (begun[0], *go_on):
        os.close(each)
