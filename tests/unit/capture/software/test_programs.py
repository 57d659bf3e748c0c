"""Random programs replay to the bit what eager code computes, on new contents, several times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import HealthCheck, assume, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from pytest_cudafork.capture.software.backend import SoftwareBackend  # noqa: E402

Pick = Callable[[int], Any]


def _place(p: Pick) -> Any:
    return p(0).abs().long().clamp(0, 3).flatten()[:4]


def _masked(p: Pick) -> Any:
    x = p(0).clone()
    x[p(1) > 0] = 0.25
    return x


def _into_slice(p: Pick) -> Any:
    x = p(0)
    x[1:3] = p(1)[:2] * 1
    return x


def _partly(p: Pick) -> Any:
    x = torch.empty(4, 4)
    x.zero_()
    x[:, 1] = p(0)[:, 0] * 1
    return x


# Each takes a way to pick a tensor that exists and gives a tensor of 4 x 4.
STEPS: dict[str, Callable[[Pick], Any]] = {
    "add": lambda p: p(0) + p(1),
    "mul": lambda p: p(0) * p(1),
    "sigmoid": lambda p: p(0).sigmoid(),
    "matmul": lambda p: (p(0) @ p(1)).tanh(),
    "view": lambda p: p(0).t(),
    "shuffled view": lambda p: p(0).view(2, 2, 4).transpose(0, 1).reshape(4, 4),
    "flip": lambda p: p(0).flip(1),
    "in place": lambda p: p(0).mul_(0.5),
    "in place by itself": lambda p: p(0).add_(p(1) * 1).clamp_(-4, 4),
    "in place of a view": lambda p: p(0)[1:2].zero_().new_ones(4, 4),
    "out=": lambda p: torch.sub(p(0), p(1), out=torch.empty(4, 4)),
    "out= of a picked one": lambda p: torch.cos(p(0) * 1, out=p(1)),
    "zeros": lambda p: torch.zeros(4, 4),
    "arange": lambda p: torch.arange(16.0).view(4, 4) / 16,
    "full": lambda p: torch.full_like(p(0), 0.5),
    "sum": lambda p: p(0).sum(0, keepdim=True).expand(4, 4).tanh(),
    "max": lambda p: p(0).max(1)[0].expand(4, 4),
    "softmax": lambda p: p(0).softmax(1),
    "gather": lambda p: p(0)[_place(p)],
    "index copy": lambda p: p(0).index_copy_(0, torch.arange(4), p(1) * 1),
    "index add": lambda p: p(0).index_add(0, _place(p), p(1)).tanh(),
    "where": lambda p: torch.where(p(0) > p(1), p(0), 0.5),
    "masked": _masked,
    "into a slice": _into_slice,
    "written in part": _partly,
    "cat": lambda p: torch.cat([p(0)[:2], p(1)[2:]]),
    "sort": lambda p: torch.sort(p(0), dim=1, stable=True)[0],
    "foreach": lambda p: torch._foreach_add([p(0), p(1)], 1.0)[0].tanh(),
    "random": lambda p: torch.rand(4, 4) + p(0).tanh(),
    "host number": lambda p: p(0) * torch.tensor(0.5),
}

PROGRAMS = st.lists(
    st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 9), st.integers(0, 9)), max_size=25
)


def _run(program: list[tuple[str, int, int]], inputs: list[Any]) -> list[Any]:
    values = list(inputs)
    for name, first, second in program:
        # A result that is a broadcast view cannot be written in place: it is copied.
        def pick(which: int, at: tuple[int, int] = (first, second)) -> Any:
            return values[at[which] % len(values)]

        made = STEPS[name](pick)
        values.append(made.contiguous() if 0 in made.stride() else made)
    return values[-4:]


def _allowed(program: list[tuple[str, int, int]]) -> bool:
    """Whether eager code runs it; it may write to memory that overlaps itself."""
    try:
        _run(program, [torch.randn(4, 4) for _ in range(3)])
    except RuntimeError:
        return False
    return True


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(PROGRAMS, st.integers(0, 1000))
def test_a_random_program_replays_to_the_bit(
    program: list[tuple[str, int, int]], seed: int
) -> None:
    assume(_allowed(program))
    generator = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(4, 4, generator=generator) for _ in range(3)]
    before = [each.clone() for each in inputs]
    backend = SoftwareBackend()
    graph = backend.capture(lambda: _run(program, inputs))
    assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=True))
    assert graph.findings == ()
    for replay in range(3):
        fresh = [torch.randn(4, 4, generator=generator) for _ in range(3)]
        for each, new in zip(inputs, fresh, strict=True):
            each.copy_(new)
        torch.manual_seed(replay)
        graph.replay()
        torch.manual_seed(replay)
        eager = backend.record(lambda fresh=fresh: _run(program, fresh))  # type: ignore[misc]
        for got, expected in zip(graph.recording.result, eager.result, strict=True):
            assert torch.equal(got.nan_to_num(), expected.nan_to_num())
        for got, expected in zip(inputs, fresh, strict=True):
            assert torch.equal(got.nan_to_num(), expected.nan_to_num())
    names = [node.name for node in graph.recording.nodes or ()]
    assert names == [node.name for node in eager.nodes or ()]


@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(st.lists(PROGRAMS, min_size=2, max_size=4), st.integers(0, 1000))
def test_programs_that_share_a_pool_replay_in_any_order(
    programs: list[list[tuple[str, int, int]]], seed: int
) -> None:
    assume(all(_allowed(program) for program in programs))
    backend = SoftwareBackend()
    pool = backend.new_pool()
    inputs = [[torch.randn(4, 4) for _ in range(3)] for _ in programs]
    graphs = [
        backend.capture(lambda p=p, i=i: _run(p, i), pool=pool)  # type: ignore[misc]
        for p, i in zip(programs, inputs, strict=True)
    ]
    order = torch.randperm(len(graphs), generator=torch.Generator().manual_seed(seed)).tolist()
    for each in [*order, *order]:
        clones = [tensor.clone() for tensor in inputs[each]]
        torch.manual_seed(seed)
        expected = _run(programs[each], clones)
        torch.manual_seed(seed)
        graphs[each].replay()
        for got, wanted in zip(graphs[each].recording.result, expected, strict=True):
            assert torch.equal(got.nan_to_num(), wanted.nan_to_num())
