"""One round: change, replay on poison, eager run, comparison; and what it shows."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.interface.backend import CaptureFinding  # noqa: E402
from pytest_cudafork.capture.replay.function_subject import FunctionSubject  # noqa: E402
from pytest_cudafork.capture.replay.rounds import Rounds  # noqa: E402
from pytest_cudafork.capture.replay.stimulus import Stimulus  # noqa: E402
from pytest_cudafork.capture.software.backend import SoftwareBackend  # noqa: E402
from pytest_cudafork.capture.state.compare import Tolerance  # noqa: E402
from pytest_cudafork.capture.story.findings import CheckLog  # noqa: E402
from pytest_cudafork.errors import CudaForkWarning, ReplayFailedError  # noqa: E402

SAME = Stimulus("the capture", lambda: None, "same")


def rounds(
    fn: Callable[..., Any], inputs: Any, *, replay: Any = None, **options: Any
) -> tuple[Rounds, CheckLog]:
    log = CheckLog()
    subject = FunctionSubject(fn, inputs, None, replay, log)
    if replay is None:
        subject.capture(SoftwareBackend(), None)
    return Rounds(subject, log, Tolerance(), **options), log


def test_a_right_replay_is_compared_twice_and_after_each_change() -> None:
    x = torch.ones(3)
    made, log = rounds(lambda x: x * 2, [x])
    made.run(SAME)
    assert (made.replays, made.compared) == (2, 2)
    made.run(Stimulus("a change", lambda: x.fill_(4)))
    made.asides(rng=False)
    assert (made.replays, made.compared, log.findings) == (3, 3, [])
    assert list(log.ran)[-1] == "uninitialized-read"


def test_a_difference_names_stimulus_values_and_the_line_that_wrote() -> None:
    x, factor = torch.ones(3), [2]
    made, log = rounds(lambda x: x * factor[0], [x])
    made.run(SAME)

    def change() -> None:
        factor[0] = 3

    made.run(Stimulus("a change", change))
    (found,) = log.findings
    assert (found.check, found.path) == ("replay-differs", "output")
    assert "after a change" in found.what
    assert "[2] -> [3]" in found.what
    assert found.where.startswith(__file__)
    made.run(Stimulus("another", lambda: x.fill_(2)))
    assert len(log.findings) == 1, "told once for each output"


def _updated(x: Any, kept: Any, factor: list[int]) -> Any:
    read = kept * 3
    kept.add_(x * factor[0])  # blamed
    return read


def _in_two_parts(x: Any, kept: Any, factor: list[int]) -> Any:
    both = torch.empty(2 * len(x))
    both[: len(x)] = x
    both[len(x) :] = x * factor[0]  # blamed
    return both[: len(x)], both[len(x) :]


def _in_memory_of_others(x: Any, kept: Any, factor: list[int]) -> Any:
    for _ in range(3):
        x = (x * 2) / 2
    return x * factor[0]  # blamed


@pytest.mark.parametrize("fn", [_updated, _in_two_parts, _in_memory_of_others])
def test_the_line_that_is_named_writes_the_memory_that_differs(fn: Any) -> None:
    x, kept, factor = torch.ones(256), torch.zeros(256), [2]
    made, log = rounds(lambda x: fn(x, kept, factor), [x])
    made.run(SAME)
    factor[0] = 3
    made.run(Stimulus("a change", lambda: x.fill_(1)))
    (found,) = log.findings
    line = linecache.getline(__file__, int(found.where.rpartition(":")[2]))
    assert line.endswith("# blamed\n")


def test_a_replay_that_writes_nothing_is_seen_by_the_poison() -> None:
    x, out = torch.ones(3), torch.full((3,), 2.0)
    made, log = rounds(lambda x: x * 2, [x], replay=lambda: out)
    made.run(SAME)
    made.run(SAME)
    assert [found.check for found in log.findings] == ["no-op-replay"]
    made, log = rounds(lambda x: x * 2, [x], replay=lambda: torch.full((3,), 2.0), poison=False)
    made.run(SAME)
    assert log.findings == []


def test_a_replay_that_fails_ends_the_rounds() -> None:
    def replay() -> None:
        raise ReplayFailedError(CaptureFinding("freed-memory", "it is gone", where="a.py:1"))

    made, log = rounds(lambda x: x * 2, [torch.ones(3)], replay=replay)
    made.run(SAME)
    made.run(SAME)
    made.asides(rng=True)
    assert [found.what for found in log.findings] == ["it is gone (replay 1, after the capture)"]
    assert made.failed


def test_a_replay_that_fails_while_draws_are_checked() -> None:
    def replay() -> None:
        raise ReplayFailedError(CaptureFinding("freed-memory", "it is gone"))

    made, log = rounds(lambda x: x * 2, [torch.ones(3)], replay=replay)
    made.asides(rng=True)
    assert [found.what for found in log.findings] == [
        "it is gone (replay 1, without anything in between)"
    ]


def test_only_live_rows_are_compared() -> None:
    x = torch.ones(3, 2)
    replayed = torch.tensor([[2.0, 2.0], [2.0, 2.0], [9.0, 9.0]])
    made, log = rounds(lambda x: x * 2, [x], replay=replayed.clone)
    made.run(Stimulus("two live rows", lambda: 2))
    assert log.findings == []
    made.run(SAME)
    assert [found.path for found in log.findings] == ["output"]


def test_what_a_refill_leaves_must_not_matter() -> None:
    x = torch.ones(4)
    made, log = rounds(lambda x: x.sum(), [x], refills=True)
    made.run(SAME)

    def refill() -> None:
        x[:2] = 3

    made.run(Stimulus("a smaller batch", refill))
    (found,) = log.findings
    assert "stale padding" in found.why


def test_what_code_changes_in_place_is_compared_too() -> None:
    x, count = torch.ones(2), torch.zeros(1)

    def fn(x: Any) -> Any:
        count.add_(1)
        return x * 2

    made, log = rounds(fn, [x])
    made.run(SAME)
    assert (log.findings, made.compared) == ([], 4)
    made, log = rounds(fn, [x], replay=lambda: x * 2)
    made.run(SAME)
    assert [found.path for found in log.findings] == ["count"]


def test_a_change_that_changes_nothing_is_told() -> None:
    made, log = rounds(lambda x: x * 2, [torch.ones(2)])
    made.run(SAME)
    with pytest.warns(CudaForkWarning, match="it tests nothing"):
        made.run(Stimulus("an idle change", lambda: None))
    assert "an idle change changed no static input" in log.notes[0]


def test_code_that_python_varies_is_frozen_in_the_graph() -> None:
    count = iter(range(1, 99))
    made, log = rounds(lambda x: x * next(count), [torch.ones(2)])
    made.run(SAME)
    (found,) = log.findings
    assert "Eager code gives something else each time, and the replay always the same" in found.what


def test_code_that_is_not_reproducible_says_nothing() -> None:
    count = iter(range(1, 99))
    varies = lambda x: x * next(count)  # noqa: E731
    made, log = rounds(varies, [torch.ones(2)], replay=lambda: torch.ones(2) * next(count))
    with pytest.warns(CudaForkWarning, match="eager code is not reproducible"):
        made.run(SAME)
    assert log.findings == []
    assert "eager code is not reproducible" in log.skipped["replay-differs (output)"]


def test_random_numbers_are_noticed() -> None:
    made, log = rounds(lambda x: x + torch.rand(2), [torch.ones(2)])
    made.run(SAME)
    assert made.drew
    made.asides(rng=False)
    assert "rng-frozen" in log.ran
    assert log.findings == []
