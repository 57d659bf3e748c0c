"""The listener that judges: what it is asked, and when it says nothing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.judge import judge  # noqa: E402
from pytest_cudafork.capture.stand_ins.capturing import graphs  # noqa: E402
from tests.support.captures import looking  # noqa: E402


def test_a_correct_graph_is_judged_and_nothing_is_said() -> None:
    with looking() as look:
        lengths, x = torch.tensor([1, 2]), torch.ones(2)
        plan = lengths.cumsum(0)
        captured = look.capture(lambda: x * plan)
        for _ in range(3):
            captured.replay()
        assert look.watching.take() == {
            "judged": 1,
            "captures": 1,
            "replays": 3,
            "backends": ["software"],
        }


def test_a_replay_that_raises_leaves_what_was_found_of_it_marked() -> None:
    with looking() as look:
        held = [torch.ones(3)]
        captured = look.capture(lambda: held[0] + 1)
        held.clear()
        with pytest.raises(RuntimeError, match="freed"):
            captured.replay()
        (error,) = look.watching.take()["errors"]
        assert error["raised"]


def test_a_capture_that_fails_is_not_judged() -> None:
    with looking() as look:
        with pytest.raises(KeyError):
            look.capture(lambda: dict[str, int]()["x"])
        assert look.watching.take() == {}


def test_captures_of_our_own_checks_are_none_of_its_business() -> None:
    with looking() as look, look.watching.watch.suspended(), pytest.raises(AssertionError):
        look.capture(lambda: torch.empty(3) + 1)
    assert look.watching.take() == {}


def test_a_graph_of_a_shared_fixture_that_reads_what_nothing_has_filled_fails_each_test() -> None:
    with looking() as look:
        captured = look.capture(lambda: torch.empty(3) + 1)
        captured.replay()
        assert look.kinds() == ["unfilled-read"]
        with look.watching.in_force("the next test"):
            captured.replay()
            assert look.kinds() == ["unfilled-read"]


def test_a_replay_that_cannot_be_judged_is_counted() -> None:
    """Of another thread, and of a graph that another thread has captured."""
    with looking() as look:
        mine = look.capture(lambda: torch.zeros(3) + 1)
        with ThreadPoolExecutor(1) as other:
            other.submit(mine.replay).result()
            theirs = graphs.CUDAGraph()
            other.submit(capture_with, theirs).result()
        theirs.replay()
        told = look.watching.take()
    mine.replay()  # while nobody looks
    assert (told["replays"], told["replays_elsewhere"], told["elsewhere"]) == (0, 2, 1)
    assert look.watching.take() == {}


def capture_with(graph: graphs.CUDAGraph) -> None:
    with graphs.graph(graph):
        torch.zeros(3) + 1


def test_under_audit_nothing_is_judged() -> None:
    with looking("audit") as look:
        captured = look.capture(lambda: torch.empty(3) + 1)
        captured.replay()
        assert captured.seen.uses.work == 1
        assert look.watching.take() == {}


def test_an_error_of_a_check_is_told_and_stops_no_test(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*given: object) -> None:
        raise KeyError("x")

    with looking() as look:
        x = torch.ones(3)
        captured = look.capture(lambda: x + 1)
        monkeypatch.setattr(judge, "check_there", breaks)
        assert captured.replay().tolist() == [2, 2, 2]
        assert look.watching.take()["not_judged"] == {"the check failed: KeyError: 'x'": 1}


def test_waiting_for_the_device_is_allowed_while_it_judges(monkeypatch: pytest.MonkeyPatch) -> None:
    modes = [2]
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: modes[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    with looking() as look:
        x = torch.ones(3)
        captured = look.capture(lambda: x + 1)
        captured.seen.backend = "cuda"
        captured.replay()
    assert modes == [2, 0, 2, 0, 2]
