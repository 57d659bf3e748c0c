"""The listener that judges: what it is asked, and when it says nothing."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.support.captures import looking  # noqa: E402


def test_a_correct_graph_is_judged_and_nothing_is_said() -> None:
    with looking() as look:
        lengths, x = torch.tensor([1, 2]), torch.ones(2)
        plan = lengths.cumsum(0)
        captured = look.capture(lambda: x * plan)
        for _ in range(3):
            captured.replay()
        assert look.watching.take() == {"judged": 1}


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
            look.capture(lambda: {}["x"])
        assert look.watching.take() == {}


def test_captures_of_our_own_checks_are_none_of_its_business() -> None:
    with looking() as look, look.watching.watch.suspended(), pytest.raises(AssertionError):
        look.capture(lambda: torch.empty(3) + 1)
    assert look.watching.take() == {}


def test_under_audit_nothing_is_judged() -> None:
    with looking("audit") as look:
        captured = look.capture(lambda: torch.empty(3) + 1)
        captured.replay()
        assert captured.seen.uses.work == 1
        assert look.watching.take() == {}
