"""Random numbers advance from replay to replay, and memory that nobody fills is not read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.replay.extra_checks import randomness, uninitialized  # noqa: E402
from pytest_cudafork.capture.replay.subject import Subject  # noqa: E402
from pytest_cudafork.capture.state.compare import Tolerance  # noqa: E402
from pytest_cudafork.capture.state.reach import Reachable  # noqa: E402
from pytest_cudafork.capture.story.findings import CheckLog  # noqa: E402


class Code(Subject):
    """Eager code and a replay that are given."""

    def __init__(self, eager: Callable[[], Any], replay: Callable[[], Any]) -> None:
        super().__init__()
        self._eager, self._replay = eager, replay

    def eager(self) -> Any:
        return self._eager()

    def replay(self) -> Any:
        return self._replay()

    def outputs(self) -> Any: ...
    def after_change(self, stimulus: Any) -> None: ...

    def inputs(self) -> dict[str, Any]:
        return {}

    def reach(self) -> Reachable:
        return Reachable({}, [])

    def moved(self) -> set[str]:
        return set()


ALIKE = (torch.tensor(number) for number in (3, 3, 3, 5))


def draw() -> Any:
    return torch.rand(2)


def test_a_replay_that_draws_the_same_again_is_found() -> None:
    log = CheckLog()
    assert randomness(Code(draw, lambda: torch.ones(2)), log, cuda=False) == 2
    assert [found.check for found in log.findings] == ["rng-frozen"]


def test_a_replay_that_draws_other_numbers_is_right() -> None:
    log = CheckLog()
    randomness(Code(draw, draw), log, cuda=False)
    assert (log.findings, list(log.ran)) == ([], ["rng-frozen"])


def test_code_that_draws_nothing_is_found() -> None:
    log = CheckLog()
    randomness(Code(lambda: torch.ones(2), lambda: torch.ones(2)), log, cuda=False)
    (found,) = log.findings
    assert (found.check, found.path) == ("rng-frozen", "output")
    assert "8 eager runs draw none" in found.what


@pytest.mark.parametrize("eager", [lambda: torch.rand(2).gt(2), lambda: next(ALIKE)])
def test_numbers_that_are_equal_by_chance_are_noted(eager: Any) -> None:
    log = CheckLog()
    randomness(Code(eager, draw), log, cuda=False)
    assert log.findings == []
    assert "two eager runs give the same" in log.notes[0]


def unfilled(eager: Callable[[], Any]) -> CheckLog:
    log = CheckLog()
    uninitialized(Code(eager, draw), log, Tolerance(), cuda=False)
    return log


def test_a_result_that_depends_on_unfilled_memory_is_found_once() -> None:
    log = unfilled(lambda: torch.empty(2) + 1)
    (found,) = log.findings
    assert (found.check, found.path) == ("uninitialized-read", "output")
    assert found.where.startswith(__file__)
    uninitialized(Code(lambda: torch.empty(2) + 1, draw), log, Tolerance(), cuda=False)
    assert len(log.findings) == 1


def test_memory_that_is_filled_or_never_asked_for_is_right() -> None:
    assert unfilled(lambda: torch.empty(2).fill_(3)).findings == []
    assert unfilled(lambda: torch.ones(2)).findings == []


def test_code_that_gives_something_else_each_time_says_nothing() -> None:
    count = iter(range(99))
    assert unfilled(lambda: torch.empty(2).fill_(next(count))).findings == []


def test_code_that_fails_below_a_mode_is_listed() -> None:
    def fails() -> None:
        raise NotImplementedError("no modes")

    assert unfilled(fails).skipped == {"uninitialized-read": "NotImplementedError: no modes"}
