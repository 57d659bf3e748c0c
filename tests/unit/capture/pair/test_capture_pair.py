"""``capture_pair``: each check finds its bug and lets the right program pass; bad input is told."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork import CapturePairError, GraphUsageError  # noqa: E402
from pytest_cudafork.capture.interface.lines import place  # noqa: E402
from pytest_cudafork.capture.pair import capture_pair as pair_module  # noqa: E402
from pytest_cudafork.capture.pair.capture_pair import CapturedPair, capture_pair  # noqa: E402
from tests.support.capture import Desc, Mode  # noqa: E402


@dataclass
class Meta:
    """Metadata that the first forward completes."""

    seq_lens: Any
    plan: Any = None
    ready: bool = False


class State(NamedTuple):
    """As vLLM's AttentionState."""

    attn_metadata: dict[str, Any]
    slot_mappings: dict[str, Any]


def attend(x: Any, meta: Meta) -> Any:
    """Initialize lazily, and use it."""
    if not meta.ready:
        meta.plan = 1.0 / meta.seq_lens.float()
        meta.ready = True
    return x * meta.plan[:, None]


class Runner:
    """Buffers and a factory; ``keep`` hands the warm-up's state to the capture, too."""

    def __init__(self, keep: Callable[[bool], Any] = lambda warmup: object()) -> None:
        self.lens = torch.tensor([1, 2, 4, 8])
        self.x = torch.randn(4, 3)
        self.slots = torch.arange(4)
        self.keep = keep
        self.states: dict[Any, State] = {}
        self.calls: list[Any] = []

    def create(self, desc: Desc, warmup: bool) -> Any:
        key = self.keep(warmup)
        if key not in self.states:
            self.states[key] = self.build(desc)
        state = self.states[key]

        def forward(mode: Mode) -> Any:
            self.calls.append(mode)
            return attend(self.x, state.attn_metadata["layers.0"])

        return forward, state

    def build(self, desc: Desc) -> State:
        return State({"layers.0": Meta(self.lens[: desc.num_reqs])}, {"layers.0": self.slots})

    def check(self, create: Any = None, **options: Any) -> CapturedPair:
        options.setdefault("persistent", {"seq_lens": self.lens, "x": self.x})
        options.setdefault("vary", [lambda: self.lens.copy_(torch.tensor([8, 4, 2, 1]))])
        return capture_pair(create or self.create, Desc(4), backend="software", **options)


def findings(run: Callable[[], Any]) -> dict[str, list[str]]:
    """Return the paths of what was found, by check."""
    with pytest.raises(CapturePairError) as caught:
        run()
    found: dict[str, list[str]] = {}
    for one in caught.value.findings:
        found.setdefault(one.check, []).append(one.path)
        assert f"[{one.check}]" in str(caught.value)
    return found


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


def test_a_shared_state_is_named_with_its_field_values_line_and_kernels() -> None:
    runner = Runner(keep=lambda warmup: "one")
    with pytest.raises(CapturePairError) as caught:
        runner.check()
    text = " ".join(str(caught.value).split())
    assert "[lazy-init-skipped] state.attn_metadata['layers.0'].plan" in text
    assert "(None -> float32[4] [1.0, 0.5, 0.25, 0.125])" in text
    assert "> meta.plan = 1.0 / meta.seq_lens.float()" in text
    assert "> meta.ready = True" in text
    assert "3 kernels of the warm-up are missing from the graph" in text
    assert "create_forward_fn(desc, warmup=False)" in text
    found = {(one.check, one.path) for one in caught.value.findings}
    assert ("aliased-state", "state.attn_metadata") in found
    assert ("replay-differs", "output") in found


def test_only_the_inner_object_is_shared() -> None:
    meta = Meta(torch.tensor([1, 2, 4, 8]))

    class Inner(Runner):
        def build(self, desc: Desc) -> State:
            meta.seq_lens = self.lens
            return State({"layers.0": meta}, {"layers.0": self.slots})

    found = findings(Inner().check)
    assert found["aliased-state"] == ["state.attn_metadata['layers.0']"]


def test_a_flag_that_survives_elsewhere_is_an_initialization_that_is_skipped() -> None:
    done: list[bool] = []

    class Flag(Runner):
        def create(self, desc: Desc, warmup: bool) -> Any:
            state = self.build(desc)

            def forward(mode: Mode) -> Any:
                meta = state.attn_metadata["layers.0"]
                if not done:
                    meta.plan = 1.0 / meta.seq_lens.float()
                    done.append(True)
                return self.x * (1.0 if meta.plan is None else meta.plan[:, None])

            return forward, state

    runner = Flag()
    with pytest.raises(CapturePairError, match="the capture does not set it") as caught:
        runner.check()
    paths = {one.path for one in caught.value.findings if one.check == "lazy-init-skipped"}
    assert "state.attn_metadata['layers.0'].plan" in paths


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


def test_a_copy_of_a_persistent_input_is_found() -> None:
    class Copies(Runner):
        def build(self, desc: Desc) -> State:
            return State({"layers.0": Meta(self.lens.clone())}, {"layers.0": self.slots})

    found = findings(Copies().check)
    assert "state.attn_metadata['layers.0'].seq_lens" in found["not-shared"]
    runner = Copies()

    def lens(state: State) -> dict[str, Any]:
        return {"lens": state.attn_metadata["layers.0"].seq_lens}

    found = findings(lambda: runner.check(persistent=lens, vary=[]))
    assert found["not-shared"] == ["persistent['lens']"]


def test_shared_memory_of_persistent_inputs_is_right_and_needs_no_word() -> None:
    runner = Runner()
    report = runner.check(persistent=None, vary=[]).report
    assert report.not_checked["not-shared"]


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


def test_the_user_may_say_what_belongs() -> None:
    runner = Runner()
    found = findings(lambda: runner.check(belongs=lambda state, desc: False))
    assert found["wrong-contents"] == ["state"]
    Runner().check(belongs=lambda state, desc: None)


def test_memory_that_a_factory_leaves_unfilled_says_nothing_about_contents() -> None:
    def create(desc: Desc, warmup: bool) -> Any:
        scratch, x = torch.empty(64, 64), torch.ones(64, 64)

        def forward() -> Any:
            scratch.copy_(x)
            return scratch * 2

        return forward, {"scratch": scratch}

    for _ in range(3):
        capture_pair(create, Desc(4), backend="software")


def test_work_done_once_per_process_is_noted_and_no_finding() -> None:
    table: dict[str, Any] = {}

    def create(desc: Desc, warmup: bool) -> Any:
        x = torch.ones(4)

        def forward() -> Any:
            if "t" not in table:
                table["t"] = torch.arange(4).cos()
            return x * table["t"]

        return forward, {"x": x}

    pair = capture_pair(create, Desc(4), backend="software")
    assert any("aten::cos" in note for note in pair.report.notes)


def test_work_that_reads_the_inputs_is_missed_wherever_its_result_is_kept() -> None:
    runner = Runner()

    @functools.lru_cache
    def plan(num_reqs: int) -> Any:
        return runner.lens[:num_reqs].float().rsqrt()

    def create(desc: Desc, warmup: bool) -> Any:
        state = {"lens": runner.lens}
        return lambda: runner.x * plan(desc.num_reqs)[:, None] + state["lens"][:, None], state

    with pytest.raises(CapturePairError, match=r"aten::rsqrt; it read persistent\['seq_lens'\]"):
        runner.check(create)


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


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (None, "lack a return"),
        ((1, 2), "first of the two must be callable"),
        ("text", "returned 'text'"),
        ((lambda: 1, 2, 3), "returned"),
    ],
)
def test_a_factory_that_returns_something_else(made: Any, words: str) -> None:
    with pytest.raises(GraphUsageError, match=words):
        capture_pair(lambda desc, warmup: made, Desc(4), backend="software")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "HALF"}, "use one of FULL, PIECEWISE"),
        ({"vary": 3}, "list of callables"),
        ({"vary": [3]}, r"vary\[0\] is 3"),
        ({"persistent": [1]}, "give a dict"),
        ({"persistent": {"x": 1}}, "holds no tensor"),
        ({"outputs": 3}, "cannot be called"),
        ({"persistent": {"x": torch.ones(1, device="meta")}}, "meta"),
        ({"persistent": {"a": torch.ones(1), "b": torch.ones(1, device="meta")}}, "2 devices"),
    ],
)
def test_wrong_arguments_are_told(options: dict[str, Any], words: str) -> None:
    with pytest.raises(GraphUsageError, match=words):
        Runner().check(**options)


@pytest.mark.parametrize("create", [3, lambda: None, lambda a, b, c: None])
def test_a_factory_that_cannot_be_called(create: Any) -> None:
    with pytest.raises(GraphUsageError, match="create_forward_fn"):
        capture_pair(create, Desc(4), backend="software")


def test_a_state_on_two_devices_is_told() -> None:
    x = torch.ones(2)
    state = {"a": x, "b": torch.ones(2, device="meta")}
    with pytest.raises(GraphUsageError, match=r"state\['a'\] on cpu and state\['b'\] on meta"):
        capture_pair(lambda d, warmup: ((lambda: x * 2), state), Desc(4), backend="software")


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


def test_the_trace_function_is_as_before() -> None:
    def mine(*_: Any) -> None:
        return None

    before = sys.gettrace()
    sys.settrace(mine)
    try:
        with pytest.raises(CapturePairError):
            Runner(keep=lambda warmup: "one").check()
        assert sys.gettrace() is mine
    finally:
        sys.settrace(before)


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
