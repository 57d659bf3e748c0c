"""Collectives in a graph write their outputs, and a replay waits for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this torch has no distributed", allow_module_level=True)

import torch.distributed as dist  # noqa: E402
import torch.distributed._functional_collectives as torch_functional  # noqa: E402

from pytest_cudafork import ReplayDiffersError, assert_replay_equals_eager  # noqa: E402
from pytest_cudafork.capture.operators.collectives import (  # noqa: E402
    OVERWRITTEN,
    UPDATED,
    finished,
    group_in,
    is_collective,
)
from pytest_cudafork.compat.torch_graphs.operators import finished_work  # noqa: E402
from tests.support.sessions import run_python  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def into(call: Any, *, listed: bool = False) -> Any:
    """A function that hands an empty output to a collective."""

    def fn(x: Any) -> Any:
        out = torch.empty_like(x)
        call([out] if listed else out, x)
        return out * 2

    return fn


def in_place(call: Any) -> Any:
    def fn(x: Any) -> Any:
        made = x.clone()
        call(made)
        return made

    return fn


def later(x: Any) -> Any:
    out = torch.empty_like(x)
    dist.all_gather_into_tensor(out, x, async_op=True).wait()
    return out + 1


functional: Any = torch_functional


def world() -> Any:
    return dist.group.WORLD


PROGRAMS: dict[str, Any] = {
    "all_gather_into_tensor": into(dist.all_gather_into_tensor),
    "reduce_scatter_tensor": into(dist.reduce_scatter_tensor),
    "all_to_all_single": into(dist.all_to_all_single),
    "all_gather": into(dist.all_gather, listed=True),
    "reduce_scatter": into(lambda out, x: dist.reduce_scatter(out, [x])),
    "gather": into(lambda out, x: dist.gather(x, [out])),
    "scatter": into(lambda out, x: dist.scatter(out, [x])),
    "asynchronous": later,
    "all_reduce": in_place(dist.all_reduce),
    "broadcast": in_place(lambda x: dist.broadcast(x, 0)),
    "reduce": in_place(lambda x: dist.reduce(x, 0)),
    "functional all_gather": lambda x: functional.all_gather_tensor(x, 0, world()) * 2,
    "functional reduce_scatter": lambda x: (
        functional.reduce_scatter_tensor(x, "sum", 0, world()) * 2
    ),
    "functional all_reduce": lambda x: functional.all_reduce(x, "sum", world()) * 2,
    "functional all_to_all": lambda x: functional.all_to_all_single(x, None, None, world()) * 2,
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_graph_with_a_collective_is_right(name: str) -> None:
    x = torch.randn(64)
    report = assert_replay_equals_eager(
        PROGRAMS[name], [x], vary=[lambda: x.normal_()], backend="software"
    )
    assert any(is_collective(node.name) for node in report.nodes or ())


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_collective_of_a_copy_that_nobody_refreshes_is_found() -> None:
    x = torch.randn(4)
    copy = x.clone()

    def fn(x: Any) -> Any:
        out = torch.empty_like(x)
        dist.all_gather_into_tensor(out, copy)
        return out * 2

    with pytest.raises(ReplayDiffersError, match="output"):
        assert_replay_equals_eager(
            fn, [x], eager=lambda x: x * 2, vary=[lambda: x.normal_()], backend="software"
        )


def test_results_are_waited_for() -> None:
    waited: list[str] = []

    class Pending:
        def wait(self) -> None:
            waited.append("work")

    run = finished(lambda: ([torch.ones(1)], None, Pending()), "c10d::allgather_")
    run()
    assert waited == ["work"]
    plain = finished(torch.add, "aten::add")
    assert plain is torch.add


def test_every_collective_with_an_output_has_a_row() -> None:
    """A release of torch may add one."""
    known = OVERWRITTEN | UPDATED
    schemas = (one for one in torch._C._jit_get_all_schemas() if one.name.startswith("c10d::"))
    without = {"c10d::barrier", "c10d::monitored_barrier_", "c10d::send", "c10d::check_for_nan"}
    assert {one.name for one in schemas} - known - without == set()


CALLED_BACK = """
import gc, time, torch
import torch.distributed as dist
from pytest_cudafork import assert_replay_equals_eager

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
x = torch.ones(4)

def reduced(x):
    dist.all_reduce(x)
    return x * 2

assert_replay_equals_eager(reduced, [x], vary=[lambda: x.fill_(2)], backend="software")
work = dist.all_reduce(torch.ones(4), async_op=True)
work.get_future().then(lambda done: (time.sleep(0.5), print("called back")))
del work
dist.destroy_process_group()
gc.collect()
"""


def test_a_group_whose_threads_call_back_ends_though_a_graph_had_its_work(tmp_path: Path) -> None:
    """Held by a ``ScriptObject`` alone, it is joined with the GIL that its thread waits for."""
    assert run_python(CALLED_BACK, tmp_path) == "called back\n"


def test_a_group_is_told_from_other_objects_of_operators() -> None:
    assert group_in(world().boxed()) is world()
    assert group_in(finished_work()) is None
    assert group_in("gloo") is None
