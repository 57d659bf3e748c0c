"""Tests of replays that cannot fail, on real CUDA graphs: each run again has its own context."""

from __future__ import annotations

import re

import pytest

from tests.support.sessions import assert_no_crash, needs_torch, run_session

pytestmark = [
    needs_torch,
    pytest.mark.gpu,
]

TESTS = """
import pytest, torch

@pytest.fixture
def step():
    class Step:
        x, weight = torch.ones(2, 3, device="cuda"), torch.full((3, 3), 2.0, device="cuda")
        index = torch.tensor([0, 1], device="cuda")
        graph = torch.cuda.CUDAGraph()
    Step.x @ Step.weight
    torch.cuda.synchronize()
    with torch.cuda.graph(Step.graph):
        Step.out = (Step.x @ Step.weight)[Step.index]
    return Step

def test_looks_at_the_shape(step):
    step.graph.replay()
    assert step.out.shape == (2, 3)

def test_looks_for_nan(step):
    step.graph.replay()
    assert not step.out.isnan().any()

def test_changes_and_compares(step):
    step.x.fill_(4)
    step.graph.replay()
    assert torch.equal(step.out, step.x @ step.weight)
"""


def test_tests_that_cannot_fail_are_listed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_them=TESTS)
    result = run_session(pytester, "-v", "--cuda-fork-captures=audit")
    assert_no_crash(result)
    result.assert_outcomes(passed=3)
    found = re.findall(r"^test_them.py::(\w+) checks nothing: ", result.stdout.str(), re.M)
    assert found == ["test_looks_at_the_shape", "test_looks_for_nan"]


GARBAGE = """
import gc, torch

def captured():
    graph, x = torch.cuda.CUDAGraph(), torch.ones(3, device="cuda")
    x + 1
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        out = x + 1
    graph.replay()
    return graph

def test_a_graph_is_garbage_within_the_next_capture():
    cycle = [captured()]
    cycle.append(cycle)
    x, graph = torch.ones(3, device="cuda"), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    before = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        with torch.cuda.graph(graph):
            del cycle
            kept = [[] for _ in range(100)]
            out = x + 1
    finally:
        gc.set_threshold(*before)
    graph.replay()
    assert out.tolist() == [2, 2, 2]
"""


def test_a_graph_that_is_garbage_does_not_end_the_next_capture(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(GARBAGE)
    result = run_session(pytester, "--cuda-fork-captures=check")
    assert_no_crash(result)
    result.assert_outcomes(passed=1)
