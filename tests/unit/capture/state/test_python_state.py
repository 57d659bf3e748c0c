"""What a check does to the objects of a program: all of a state is put back, or nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork import CapturePairError, GraphCaptureError, ReplayDiffersError  # noqa: E402
from pytest_cudafork import assert_replay_equals_eager as compare  # noqa: E402
from pytest_cudafork.capture.interface.lines import place  # noqa: E402
from pytest_cudafork.capture.pair.capture_pair import capture_pair  # noqa: E402

X = torch.ones(4)


class Ids:
    """An allocator of which a half that is put back fails at once."""

    def __init__(self) -> None:
        self.last = 0
        self.live: dict[int, object] = {}
        self.log: list[Any] = []

    def new(self) -> None:
        self.last += 1
        assert self.last not in self.live
        self.live[self.last] = object()
        self.log.append((self.last, "new"))
        assert len(self.live) == len(self.log) == self.last


IDS = Ids()


def test_what_lies_beside_the_state_is_left_as_the_calls_made_it() -> None:
    def forward() -> Any:
        IDS.new()
        return X * 2

    capture_pair(lambda desc, warmup: (forward, {}), 1, backend="software")
    IDS.new()


@pytest.mark.parametrize("alone", [False, True])
def test_an_engine_that_counts_its_steps_is_right(alone: bool) -> None:
    own, x = Ids(), torch.ones(4)

    def forward() -> Any:
        own.new()
        return x * 2

    def told(desc: int, warmup: bool) -> Any:
        return forward, {}

    def anew(desc: int) -> Any:
        return forward

    create: Any = anew if alone else told
    capture_pair(create, 1, vary=[lambda: x.fill_(3)], backend="software")
    own.new()


@pytest.mark.parametrize("make", [int, str, object, list, dict, lambda: torch.zeros(1)])
def test_a_list_keeps_every_call(make: Any) -> None:
    seen: list[Any] = []
    calls: list[int] = []

    def forward() -> Any:
        seen.append(make())
        calls.append(1)
        return X * 2

    capture_pair(lambda desc, warmup: (forward, {}), 1, backend="software")
    assert len(seen) == len(calls)


def test_an_exception_in_the_middle_leaves_the_inputs_as_they_were() -> None:
    x = torch.arange(4.0)

    def interrupt() -> None:
        x.fill_(9)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(lambda x: x * 2, [x], vary=[interrupt], backend="software")
    assert x.tolist() == [0, 1, 2, 3]
    with pytest.raises(KeyboardInterrupt):
        capture_pair(
            lambda desc, warmup: ((lambda: x * 2), {}), 1, persistent={"x": x}, vary=[interrupt],
            backend="software",
        )  # fmt: skip
    assert x.tolist() == [0, 1, 2, 3]


def test_a_frozen_value_is_named_with_both_values_and_the_line() -> None:
    lens = [3]

    def grow() -> None:
        lens[0] = 9

    with pytest.raises(ReplayDiffersError, match=r"lens \(\[3\] -> \[9\]\)") as caught:
        compare(lambda x: x / max(lens), [X], vary=[grow], backend="software")
    assert caught.value.findings[0].where.startswith(place(__file__, 0)[:-1])

    engine = {"max": 4}

    def create(desc: int, warmup: bool) -> Any:
        state = {"max": engine["max"]}
        return (lambda: X * state["max"]), state

    with pytest.raises(CapturePairError, match=r"state\['max'\] \(4 -> 7\)") as failed:
        capture_pair(create, 4, vary=[lambda: engine.update(max=7)], backend="software")
    text = " ".join(str(failed.value).split())
    assert "report.nodes" not in text
    assert f"{Path(__file__).name}:" in text.partition("after vary[0]")[2][:60]


def test_work_on_inputs_that_only_the_first_call_does_is_told() -> None:
    class Memo:
        def __init__(self) -> None:
            self.w: Any = None

        def __call__(self, x: Any) -> Any:
            if self.w is None:
                self.w = x.abs().sum()
            return x / self.w

    x = torch.ones(4)
    with pytest.warns(match=r"first call of fn computed something from inputs\[0\]"):
        compare(Memo(), [x], vary=[lambda: x.fill_(2)], backend="software")
    x = torch.ones(4)
    with pytest.raises(GraphCaptureError):
        compare(
            Memo(), [x], vary=[lambda: x.fill_(2)], eager=lambda x: x / x.abs().sum(),
            backend="software",
        )  # fmt: skip
