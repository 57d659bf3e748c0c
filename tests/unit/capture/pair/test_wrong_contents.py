"""The check wrong-contents: the captured state belongs to its descriptor."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

from pytest_cudafork import GraphUsageError  # noqa: E402
from pytest_cudafork.capture.pair.capture_pair import capture_pair  # noqa: E402
from tests.support.capture import Desc  # noqa: E402
from tests.support.capture_pair import Meta, Runner, State, findings  # noqa: E402


def test_a_state_that_another_descriptor_overwrites_is_found() -> None:
    buffer = torch.zeros(8)

    class Views(Runner):
        def build(self, desc: Desc) -> State:
            view = buffer[: desc.num_reqs]
            view.copy_(torch.arange(desc.num_reqs) + desc.num_reqs)
            return State({"layers.0": Meta(view)}, {})

    found = findings(lambda: Views().check(other_descs=[Desc(2)], vary=[]))
    assert found["wrong-contents"] == ["state.attn_metadata['layers.0'].seq_lens"]
    persistent = {"seq_lens": buffer}
    Views().check(other_descs=[Desc(2)], vary=[], persistent=persistent)


def test_contents_of_another_batch_are_found() -> None:
    class Counts(NamedTuple):
        num_reqs: int
        lens: Any

    def stale(desc: Desc, warmup: bool) -> Any:
        x = torch.ones(4)
        return (lambda: x * 2), Counts(desc.num_reqs if warmup else 7, x)

    found = findings(lambda: capture_pair(stale, Desc(4), backend="software"))
    assert found["wrong-contents"] == ["state.num_reqs"]
    calls: list[int] = []

    def first_only(desc: Desc, warmup: bool) -> Any:
        calls.append(1)
        lens = torch.full((4,), 5 if len(calls) == 2 else 6)
        return (lambda: lens * 2), {"lens": lens}

    found = findings(lambda: capture_pair(first_only, Desc(4), backend="software"))
    assert "state['lens']" in found["wrong-contents"]


@pytest.mark.parametrize("own", [True, False])
def test_another_build_is_made_with_the_inputs_of_each_vary(own: bool) -> None:
    """With the first inputs the smaller batch happens to write the same."""
    lens, x, buffer = torch.tensor([5, 6, 7, 8]), torch.ones(4), torch.zeros(4, dtype=torch.int64)

    def create(desc: int, warmup: bool) -> Any:
        starts = lens[:desc].cumsum(0)
        if not own:
            starts = buffer[:desc].copy_(starts)
        state = {"starts": starts}

        def forward() -> Any:
            if own:
                torch.cumsum(lens[:desc], 0, out=state["starts"])
            return x[:desc] + state["starts"]

        return forward, state

    def check() -> None:
        capture_pair(
            create,
            4,
            persistent={"lens": lens},
            vary=[lambda: lens.copy_(torch.tensor([1, 1, 9, 9]))],
            other_descs=[2],
            backend="software",
        )

    if own:
        check()
    else:
        assert findings(check)["wrong-contents"] == ["state['starts']"]
    assert (lens.tolist(), buffer.tolist()) == ([5, 6, 7, 8], [0] * 4 if own else [5, 11, 18, 26])


@pytest.mark.parametrize(
    "no", [False, 0, torch.tensor(False), torch.tensor([True, False]), np.False_, np.zeros(2)]
)
def test_the_user_may_say_what_belongs(no: Any) -> None:
    runner = Runner()
    found = findings(lambda: runner.check(belongs=lambda state, desc: no))
    assert found["wrong-contents"] == ["state"]


@pytest.mark.parametrize("yes", [None, True, 1, torch.tensor([True, True]), np.True_])
def test_what_belongs_is_told_by_what_counts_as_true(yes: Any) -> None:
    Runner().check(belongs=lambda state, desc: yes)


def test_an_answer_that_is_neither_yes_nor_no_is_told() -> None:
    class Odd:
        def __bool__(self) -> bool:
            raise RuntimeError("ask later")

    with pytest.raises(GraphUsageError, match=r"neither yes nor no \(ask later\)"):
        Runner().check(belongs=lambda state, desc: Odd())


def test_memory_that_a_factory_leaves_unfilled_says_nothing_about_contents() -> None:
    def create(desc: Desc, warmup: bool) -> Any:
        scratch, x = torch.empty(64, 64), torch.ones(64, 64)

        def forward() -> Any:
            scratch.copy_(x)
            return scratch * 2

        return forward, {"scratch": scratch}

    for _ in range(3):
        capture_pair(create, Desc(4), backend="software")
