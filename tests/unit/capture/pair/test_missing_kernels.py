"""The check missing-kernels: all work of the warm-up is in the graph."""

from __future__ import annotations

import functools
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork import CapturePairError  # noqa: E402
from pytest_cudafork.capture.pair.capture_pair import capture_pair  # noqa: E402
from tests.support.capture import Desc  # noqa: E402
from tests.support.capture_pair import Runner  # noqa: E402


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
