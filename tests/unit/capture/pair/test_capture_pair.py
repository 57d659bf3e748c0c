"""``capture_pair``: each check finds its bug and lets the right program pass; bad input is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork import CapturePairError, GraphUsageError  # noqa: E402
from pytest_cudafork.capture.interface.lines import place  # noqa: E402
from pytest_cudafork.capture.pair import capture_pair as pair_module  # noqa: E402
from pytest_cudafork.capture.pair.capture_pair import capture_pair  # noqa: E402
from tests.support.capture import Desc, Mode  # noqa: E402
from tests.support.capture_pair import Meta, Runner, attend, findings  # noqa: E402


def test_a_right_pair_passes_and_is_returned() -> None:
    runner = Runner()
    pair = runner.check(other_descs=[Desc(2)])
    assert pair.warmup is not pair.captured
    assert pair.captured.attn_metadata["layers.0"].ready
    assert [node.name for node in pair.graph.recording.nodes or ()]
    assert pair.report.backend == "software"
    assert not pair.report.findings
    assert {
        "aliased-state",
        "lazy-init-skipped",
        "not-shared",
        "wrong-contents",
        "missing-kernels",
        "replay-differs",
    } <= set(pair.report.checks)
    assert set(runner.calls) == {Mode.NONE}


def test_for_piecewise_the_state_may_be_one() -> None:
    meta = Meta(torch.tensor([1, 2, 4, 8]), torch.ones(4), True)
    seen: list[Any] = []

    def create(desc: Desc, warmup: bool) -> Any:
        def forward(mode: Mode) -> Any:
            seen.append(mode)
            return meta.seq_lens * 2

        return forward, meta

    pair = capture_pair(create, Desc(4, Mode.PIECEWISE), mode="PIECEWISE", backend="software")
    assert pair.warmup is pair.captured
    assert "aliased-state" in pair.report.not_checked
    assert set(seen) == {Mode.NONE, Mode.PIECEWISE}


def test_a_forward_alone_is_checked_by_what_it_carries() -> None:
    runner = Runner()
    meta = Meta(runner.lens)

    def create(desc: Desc) -> Any:
        return lambda: attend(runner.x, meta)

    found = findings(lambda: runner.check(create))
    assert found["aliased-state"] == ["forward_fn.meta"]
    assert {"replay-differs", "missing-kernels"} <= set(found)

    def anew(desc: Desc) -> Any:
        own = Meta(runner.lens)
        return lambda: attend(runner.x, own)

    runner.check(anew)


def test_outputs_may_lie_in_a_buffer() -> None:
    runner, out = Runner(), torch.zeros(4, 3)

    def create(desc: Desc, warmup: bool) -> Any:
        state = runner.build(desc)

        def forward(mode: Mode) -> None:
            out.copy_(attend(runner.x, state.attn_metadata["layers.0"]))

        return forward, state

    runner.check(create, outputs=lambda: out)
    frozen: list[int] = []

    def buggy(desc: Desc, warmup: bool) -> Any:
        def forward(mode: Mode) -> None:
            if not frozen:
                out.copy_(runner.x)
                frozen.append(1)

        return forward, {}

    found = findings(lambda: runner.check(buggy, outputs=lambda: out))
    assert "not-captured" in found


def test_a_vary_that_takes_the_state_refreshes_it() -> None:
    runner = Runner()

    def create(desc: Desc, warmup: bool) -> Any:
        meta = Meta(runner.lens, 1.0 / runner.lens.float(), True)  # planned outside the graph
        return (lambda: attend(runner.x, meta)), meta

    found = findings(lambda: runner.check(create))
    assert "replay-differs" in found

    def replan(state: Meta) -> None:
        runner.lens.copy_(torch.tensor([8, 4, 2, 1]))
        state.plan.copy_(1.0 / runner.lens.float())

    runner.lens.copy_(torch.tensor([1, 2, 4, 8]))
    runner.check(create, vary=[replan])


@pytest.mark.parametrize("given", [list, lambda one: {"out": one[0]}, lambda one: one[0]])
def test_persistent_inputs_and_outputs_may_be_listed(given: Any) -> None:
    runner, out = Runner(), torch.zeros(4, 3)

    def create(desc: Desc, warmup: bool) -> Any:
        return lambda: out.copy_(runner.x * runner.lens[:, None]), {"lens": runner.lens}

    inputs: Any = [runner.lens, runner.x]
    pair = runner.check(create, persistent=inputs, outputs=given([out]))
    assert not pair.report.not_checked
    copies = lambda state: [runner.lens.clone()]  # noqa: E731
    found = findings(lambda: runner.check(create, persistent=copies, outputs=given([out])))
    assert found["not-shared"] == ["persistent[0]"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "HALF"}, "use one of FULL, PIECEWISE"),
        ({"vary": 3}, "list of callables"),
        ({"vary": [3]}, r"vary\[0\] is 3"),
        ({"persistent": 1}, "give a dict"),
        ({"persistent": [1]}, r"persistent\[0\] is 1: it holds no tensor"),
        ({"persistent": {"x": 1}}, "holds no tensor"),
        ({"outputs": 3}, "give a list of the static outputs"),
        ({"persistent": {"x": torch.ones(1, device="meta")}}, "meta"),
        ({"persistent": {"a": torch.ones(1), "b": torch.ones(1, device="meta")}}, "2 devices"),
    ],
)
def test_wrong_arguments_are_told(options: dict[str, Any], words: str) -> None:
    with pytest.raises(GraphUsageError, match=words):
        Runner().check(**options)


def test_a_state_on_two_devices_is_told() -> None:
    x = torch.ones(2)
    state = {"a": x, "b": torch.ones(2, device="meta")}
    with pytest.raises(GraphUsageError, match=r"state\['a'\] on cpu and state\['b'\] on meta"):
        capture_pair(lambda d, warmup: ((lambda: x * 2), state), Desc(4), backend="software")


@pytest.mark.slow
def test_a_state_of_a_million_objects_is_told() -> None:
    x, big = torch.ones(2), [[i] for i in range(200_000)]
    with pytest.raises(GraphUsageError, match=r"more than 100,000 objects.*shared="):
        capture_pair(lambda d, warmup: ((lambda: x * 2), {"b": big}), 1, backend="software")
    capture_pair(
        lambda d, warmup: ((lambda: x * 2), {"b": big}), 1, backend="software", shared=[big]
    )


def test_an_exception_in_the_capture_names_the_line_and_leaves_nothing_behind() -> None:
    x = torch.ones(2)
    runs: list[int] = []

    def forward() -> Any:
        runs.append(1)
        if len(runs) == 2:
            raise RuntimeError("in the middle")
        return x * 2

    with pytest.raises(CapturePairError, match="in the middle") as caught:
        capture_pair(lambda d, warmup: (forward, {}), 1, backend="software")
    (found,) = caught.value.findings
    assert found.check == "capture-failed"
    assert found.where.startswith(place(__file__, 0)[:-1])
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert torch.equal(x * 3, torch.full((2,), 3.0))
    Runner().check()


def test_an_exception_in_the_warmup_is_the_users_own() -> None:
    def forward() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        capture_pair(lambda d, warmup: (forward, {}), 1, backend="software")
    Runner().check()


def test_a_host_sync_is_a_finding_with_its_line() -> None:
    x = torch.ones(2)
    with pytest.raises(CapturePairError) as caught:
        capture_pair(lambda d, w: ((lambda: x * x.sum().item()), {}), 1, backend="software")
    assert caught.value.findings[0].check == "host-sync"
    assert Path(__file__).name in caught.value.findings[0].where


def test_a_capture_within_a_capture_is_refused() -> None:
    runner = Runner()
    with pytest.raises(GraphUsageError, match="within another"):
        capture_pair(lambda d, w: ((lambda: runner.check()), {}), 1, backend="software")
    runner.check()


def test_random_forwards_are_compared_by_equal_draws() -> None:
    x = torch.ones(64)
    pair = capture_pair(
        lambda d, warmup: ((lambda: torch.nn.functional.dropout(x)), {"x": x}),
        1,
        backend="software",
    )
    assert "rng-frozen" in pair.report.checks


def test_the_module_says_what_it_returns() -> None:
    assert pair_module.PairReport("software", (), {}, (), None, None).findings == ()
