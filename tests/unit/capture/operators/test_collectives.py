"""What collectives write, and that their results are there when they have been called."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from pytest_cudafork.capture.operators.collectives import (  # noqa: E402
    finishing,
    is_collective,
    written_arguments,
)
from pytest_cudafork.capture.operators.rules import Kind  # noqa: E402
from pytest_cudafork.capture.operators.traits import traits_of  # noqa: E402


@pytest.mark.parametrize(
    ("operator", "names", "written"),
    [
        ("c10d::allreduce_", ["tensors", "process_group"], {"tensors": True}),
        ("c10d::recv_", ["tensors", "src"], {"tensors": False}),
        ("c10d::_allgather_base_", ["output_tensor", "input_tensor"], {"output_tensor": False}),
        ("c10d::alltoall_base_", ["output", "input"], {"output": False}),
        ("c10d::send", ["tensors", "dst"], {}),
        ("c10d::barrier", ["tensor"], {}),
        ("_c10d_functional::all_reduce", ["input"], {}),
        ("aten::mm", ["self", "mat2"], {}),
    ],
)
def test_what_an_operator_writes(operator: str, names: list[str], written: object) -> None:
    assert written_arguments(operator, names) == written
    assert is_collective(operator) == (not operator.startswith("aten"))


def test_each_collective_that_takes_outputs_is_known_to_write_them() -> None:
    schemas = [one for one in torch._C._jit_get_all_schemas() if one.name.startswith("c10d::")]
    assert len(schemas) > 10
    for schema in schemas:
        names = [one.name for one in schema.arguments]
        if any(name.startswith("output") for name in names):
            assert written_arguments(schema.name, names), schema


@pytest.fixture
def group() -> Iterator[None]:
    """A group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_functional_collective_has_ended_when_it_was_called(group: None) -> None:
    reduce = finishing(torch.ops._c10d_functional.reduce_scatter_tensor)
    for _ in range(20):
        x = torch.randn(1000)
        assert torch.equal(reduce(x, "sum", 1, dist.group.WORLD.group_name), x)


def test_the_traits_of_collectives() -> None:
    gather = traits_of(torch.ops.c10d._allgather_base_.default)
    assert [(one.name, one.reads) for one in gather.written] == [("output_tensor", False)]
    assert gather.returns == (0, None)
    assert gather.collective
    assert traits_of(torch.ops._c10d_functional.wait_tensor.default).kind is Kind.VIEW
