"""The check missing-kernels: all work of the warm-up is in the graph."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork import CapturePairError  # noqa: E402
from pytest_cudafork.capture.interface.backend import GraphNode, Recording  # noqa: E402
from pytest_cudafork.capture.pair import missing_kernels  # noqa: E402
from pytest_cudafork.capture.pair.capture_pair import capture_pair  # noqa: E402
from pytest_cudafork.capture.story.findings import source_of  # noqa: E402
from tests.support.capture import Desc  # noqa: E402
from tests.support.capture_pair import Runner  # noqa: E402


def test_work_is_counted_and_copies_are_not() -> None:
    init, work, copy = GraphNode("op", "init"), GraphNode("op", "work"), GraphNode("memcpy", "copy")
    warm, captured = (Recording(None, nodes, ()) for nodes in ((init, work, work, copy), (work,)))
    missing = missing_kernels.missing_nodes(warm, captured)
    assert missing == {("op", "init"): 1, ("op", "work"): 1}
    assert missing_kernels.missing_nodes(Recording(None, None, ()), captured) == {}


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

    words = r"aten::rsqrt computed in the warm-up from\s+persistent\['seq_lens'\]"
    with pytest.raises(CapturePairError, match=words):
        runner.check(create)


class Layer(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    """Plans once; its plan is of a kind of work that the model does elsewhere, too."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("buffer", torch.zeros(4))
        self.plan: Any = None
        self.planned, self.to_be_planned = False, True

    def new_tensor(self, lens: Any) -> Any:
        if self.plan is None:
            self.plan = lens.float().rsqrt()  # the plan
        return self.plan

    def buffer_and_flag(self, lens: Any) -> Any:
        if not self.planned:
            self.planned = True
            self.buffer.copy_(lens.float().rsqrt())  # the plan
        return self.buffer

    def buffer_and_changed_flag(self, lens: Any) -> Any:
        if self.to_be_planned:
            self.to_be_planned = False
            torch.rsqrt(lens.float(), out=self.buffer)  # the plan
        return self.buffer


@pytest.mark.parametrize("plan", ["new_tensor", "buffer_and_flag", "buffer_and_changed_flag"])
@pytest.mark.parametrize("reads", [True, False])
def test_a_plan_that_a_layer_keeps_is_found_by_its_memory(plan: str, reads: bool) -> None:
    runner, layer = Runner(), Layer()

    def create(desc: Desc, warmup: bool) -> Any:
        state = {"lens": runner.lens}

        def forward() -> Any:
            tiles = getattr(layer, plan)(state["lens"])[:, None]
            other = runner.x.abs().add(1).rsqrt()
            return other * tiles + (state["lens"].float()[:, None] if reads else 0)

        return forward, state

    with pytest.raises(CapturePairError) as caught:
        runner.check(create)
    (found,) = (one for one in caught.value.findings if one.check == "missing-kernels")
    assert source_of(found.where).endswith("# the plan")
    assert "from persistent['seq_lens']" in found.what
    assert any(one.check == "not-shared" for one in caught.value.findings) is not reads


def test_a_plan_that_is_made_anew_before_each_replay_is_right() -> None:
    runner, layer = Runner(), Layer()

    def create(desc: Desc, warmup: bool) -> Any:
        state = {"lens": runner.lens}
        return lambda: runner.x * layer.new_tensor(state["lens"])[:, None] + runner.lens[0], state

    def step() -> None:
        runner.lens.add_(1)
        layer.plan.copy_(runner.lens.float().rsqrt())

    runner.check(create, vary=[step])


def test_what_is_no_result_of_an_input_may_be_kept() -> None:
    runner = Runner()
    table: list[Any] = []
    previous, weight = torch.zeros(4, 3), torch.rand(3)

    def create(desc: Desc, warmup: bool) -> Any:
        def forward() -> Any:
            if not table:
                table.append(weight.rsqrt())  # from no input
            result = runner.x.abs().add(1).rsqrt() * table[0] + previous + runner.lens[:, None]
            previous.copy_(result)  # the graph does it, too
            return result

        return forward, {"lens": runner.lens}

    report = runner.check(create).report
    assert any("done once per process" in note for note in report.notes)


def test_what_is_kept_is_not_judged_where_no_input_is_known() -> None:
    runner, layer = Runner(), Layer()

    def create(desc: Desc, warmup: bool) -> Any:
        state = {"lens": runner.lens}
        return lambda: runner.x * layer.new_tensor(state["lens"])[:, None], state

    report = runner.check(create, persistent=None, vary=[]).report
    (why_not,) = (why for name, why in report.not_checked.items() if "missing-kernels" in name)
    assert "aten::rsqrt" in why_not


def test_an_input_is_also_what_a_vary_changes() -> None:
    runner, layer = Runner(), Layer()

    def create(desc: Desc, warmup: bool) -> Any:
        state = {"lens": runner.lens}
        return lambda: runner.x * layer.new_tensor(state["lens"])[:, None], state

    with pytest.raises(CapturePairError, match=r"from\s+state"):
        runner.check(create, persistent=None)


@pytest.mark.parametrize("unknown", ["warmup", "recording"])
def test_work_that_is_not_known_is_not_called_clean(
    unknown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(missing_kernels, "handed_over", lambda warmup, graph: [])
    made = {name: SimpleNamespace(nodes=[], why_not="") for name in ("warmup", "recording")}
    made[unknown] = SimpleNamespace(nodes=None, why_not="the driver is too old")
    said: list[tuple[str, str]] = []
    pair: Any = SimpleNamespace(
        passes=SimpleNamespace(
            warmup=made["warmup"], graph=SimpleNamespace(recording=made["recording"])
        ),
        log=SimpleNamespace(cannot=lambda check, why: said.append((check, why))),
    )
    missing_kernels.check(pair)
    which = {"warmup": "the warm-up", "recording": "the graph"}[unknown]
    words = f"the work of {which} is not known: the driver is too old"
    assert said == [("missing-kernels", words)]
