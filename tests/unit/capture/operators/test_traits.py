"""What is read off an operator's schema and its row in the table of rules."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.operators.rules import Kind  # noqa: E402
from pytest_cudafork.capture.operators.traits import rule_of, tensors_in, traits_of  # noqa: E402

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("op", "kind"),
    [
        (aten.view.default, Kind.VIEW),
        (aten.t_.default, Kind.VIEW),
        (aten._unsafe_view.default, Kind.VIEW),
        (aten.is_same_size.default, Kind.VIEW),
        (aten.empty.memory_format, Kind.EMPTY),
        (aten.new_empty.default, Kind.EMPTY),
        (aten.mm.default, Kind.WORK),
        (aten._assert_async.msg, Kind.WORK),
        (aten._local_scalar_dense.default, Kind.SYNC),
        (aten.lift_fresh.default, Kind.LIFT),
        (aten.scalar_tensor.default, Kind.SCALAR),
        (aten.resize_.default, Kind.RESIZE),
        (torch.ops.profiler._record_function_enter_new.default, Kind.VIEW),
    ],
    ids=str,
)
def test_the_kind_of_an_operator(op: Any, kind: Kind) -> None:
    assert traits_of(op).kind is kind


def test_what_an_operator_writes_and_whether_it_reads_that() -> None:
    (written,) = traits_of(aten.add_.Tensor).written
    assert (written.position, written.name, written.reads, written.out) == (0, "self", True, False)
    (written,) = traits_of(aten.add.out).written
    assert (written.name, written.reads, written.out) == ("out", False, True)
    assert traits_of(aten.add.Tensor).written == ()


@pytest.mark.parametrize(
    "op",
    [
        aten.copy_.default, aten.fill_.Scalar, aten.zero_.default, aten.uniform_.default,
        aten.normal_.default, aten.random_.default, aten.bernoulli_.float,
        aten.exponential_.default, aten.geometric_.default, aten.cauchy_.default,
        aten.log_normal_.default, aten._foreach_zero_.default, aten._foreach_copy_.default,
    ],
    ids=str,
)  # fmt: skip
def test_an_operator_that_overwrites_does_not_read(op: Any) -> None:
    assert [one.reads for one in traits_of(op).written] == [False]


@pytest.mark.parametrize("draw", ["geometric_", "cauchy_", "log_normal_"])
def test_what_was_in_memory_before_a_draw_does_not_matter(draw: str) -> None:
    # The values say so, too: not only what the table says of the operator.
    drawn = []
    for contents in (0.0, float("nan")):
        torch.manual_seed(1)
        args = (0.5,) if draw == "geometric_" else ()
        drawn.append(getattr(torch.full((8,), contents), draw)(*args))
    assert torch.equal(drawn[0], drawn[1])


def test_running_statistics_are_written_although_the_schema_does_not_say_so() -> None:
    written = {one.name for one in traits_of(aten.native_batch_norm.default).written}
    assert written == {"running_mean", "running_var"}


def test_which_results_are_arguments() -> None:
    assert traits_of(aten.add_.Tensor).returns == (0,)
    assert traits_of(aten.add.Tensor).returns == (None,)


def test_some_operators_look_at_shapes_alone() -> None:
    assert traits_of(aten.zeros_like.default).shape_only
    assert traits_of(aten.new_full.default).shape_only
    assert not traits_of(aten.mm.default).shape_only


def test_a_tag_of_torch_says_that_a_result_depends_on_values() -> None:
    assert traits_of(aten.nonzero.default).on_values is not None
    assert traits_of(aten.mm.default).on_values is None
    assert traits_of(aten.histc.default).waits


def test_an_operator_of_another_library_has_no_row() -> None:
    with torch.library._scoped_library("cudafork_traits", "DEF") as library:
        library.define("copy_(Tensor(a!) self, Tensor src) -> Tensor(a!)")
        library.impl("copy_", lambda self, src: self, "CPU")
        traits = traits_of(torch.ops.cudafork_traits.copy_.default)
        assert traits.in_python
    assert not traits.in_python
    assert [one.reads for one in traits.written] == [True]
    assert rule_of("cudafork_traits::copy_") == rule_of("aten::mm")
    assert rule_of("aten::copy_").overwrites


def test_an_operator_made_of_others_is_known() -> None:
    assert traits_of(aten.linear.default).composite
    assert traits_of(aten.dropout.default).has_generator is False
    assert traits_of(aten.rand.generator).has_generator
    assert traits_of(aten.rand.default).has_device


def test_tensors_are_found_among_arguments() -> None:
    x, y = torch.ones(1), torch.ones(2)
    found = tensors_in([x, {"y": (y, 3)}, slice(x, None, y)])
    assert [id(each) for each in found] == [id(each) for each in (x, y, x, y)]


def test_an_operator_is_looked_at_once() -> None:
    assert traits_of(aten.mm.default) is traits_of(aten.mm.default)


def test_tensors_of_a_call_are_given_with_how_they_are_written() -> None:
    x, y, z = torch.ones(1), torch.ones(1), torch.ones(1)
    found = list(traits_of(aten.add.out).tensors((x, y), {"alpha": 1, "out": z}))
    assert all(tensor is given for (tensor, _), given in zip(found, (x, y, z), strict=True))
    assert [None if how is None else how.reads for _, how in found] == [None, None, False]
    copy = traits_of(aten._foreach_copy_.default)
    assert [how is not None for _, how in copy.tensors(([x, y], [z, z]), {})] == [
        True, True, False, False,
    ]  # fmt: skip
