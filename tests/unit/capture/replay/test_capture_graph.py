"""One attempt to capture: what goes wrong is a finding with the user's line."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.interface.backend import GraphNode, Recording  # noqa: E402
from pytest_cudafork.capture.replay.capture_graph import capture_graph  # noqa: E402
from pytest_cudafork.capture.software.backend import SoftwareBackend  # noqa: E402
from pytest_cudafork.capture.story.findings import CheckLog  # noqa: E402

X = torch.ones(4)


def attempt(fn: Any, **options: Any) -> tuple[Any, CheckLog]:
    log = CheckLog()
    return capture_graph(SoftwareBackend(), fn, log, **options), log


def test_a_capture_that_succeeds_is_returned() -> None:
    graph, log = attempt(lambda: X * 2)
    assert graph.recording.nodes
    assert log.findings == []
    assert {"capture-failed", "host-sync", "not-captured"} <= set(log.ran)


def test_what_the_backend_refuses_is_its_finding() -> None:
    graph, log = attempt(lambda: X.sum().item())
    assert graph is None
    assert [found.check for found in log.findings] == ["host-sync"]
    assert log.findings[0].where.startswith(__file__)


def test_an_error_of_the_code_is_one_with_its_cause() -> None:
    def fails() -> None:
        raise LookupError("lost")

    graph, log = attempt(fails)
    assert graph is None
    (found,) = log.findings
    assert "raised LookupError while it was captured: 'lost'" in found.what
    assert found.where.startswith(__file__)
    assert isinstance(log.cause, LookupError)


@pytest.mark.parametrize(("nodes", "found"), [((), False), ((GraphNode("op", "mul"),), True)])
def test_an_empty_graph_is_wrong_if_the_warmup_worked(nodes: Any, found: bool) -> None:
    _, log = attempt(lambda: X, warmup=Recording(None, nodes, ()))
    assert [one.check for one in log.findings] == (["not-captured"] if found else [])
