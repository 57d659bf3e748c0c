"""A comparison lets go of its graph, however it ends."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from tests.support.sessions import needs_torch

pytestmark = needs_torch

torch = pytest.importorskip("torch")

from pytest_cudafork import GraphUsageError, ReplayDiffersError  # noqa: E402
from pytest_cudafork import assert_replay_equals_eager as compare  # noqa: E402
from pytest_cudafork.capture.pair.capture_pair import capture_pair as check_pair  # noqa: E402
from pytest_cudafork.capture.replay.cleanup import release  # noqa: E402
from pytest_cudafork.capture.software.backend import SoftwareBackend, SoftwareCapture  # noqa: E402


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[SoftwareCapture]:
    """All graphs that are captured."""
    made: list[SoftwareCapture] = []
    original = SoftwareBackend.capture

    def capture(self: SoftwareBackend, *args: Any, **kwargs: Any) -> SoftwareCapture:
        made.append(original(self, *args, **kwargs))
        return made[-1]

    monkeypatch.setattr(SoftwareBackend, "capture", capture)
    return made


def _is_gone(graph: SoftwareCapture) -> bool:
    return graph._tape is None and graph.recording.result is None


def test_a_failed_comparison_lets_go_of_its_graph(graphs: list[SoftwareCapture]) -> None:
    frozen = [0.0]

    def counts(x: Any) -> Any:
        frozen[0] += 1
        return x + frozen[0]

    with pytest.raises(ReplayDiffersError):
        compare(counts, [torch.ones(4)], backend="software")
    assert [_is_gone(each) for each in graphs] == [True]


def test_a_comparison_that_cannot_be_made_does_so_too(graphs: list[SoftwareCapture]) -> None:
    def breaks() -> None:
        raise KeyError("of the user")

    with pytest.raises(GraphUsageError, match="no tensor"):
        compare(lambda x: None, [torch.ones(4)], backend="software")
    with pytest.raises(KeyError):
        compare(lambda x: x * 2, [torch.ones(4)], vary=[breaks], backend="software")
    x = torch.ones(4)
    with pytest.raises(KeyError):
        check_pair(lambda d, w: (lambda: x * 2, {}), 4, vary=[breaks], backend="software")
    assert len(graphs) == 3
    assert all(_is_gone(each) for each in graphs)


def test_a_device_that_is_lost_does_not_hide_what_was_found() -> None:
    class Lost(SoftwareCapture):
        def __init__(self) -> None:
            pass

        def reset(self) -> None:
            raise RuntimeError("CUDA error: device-side assert triggered")

    release(Lost())
    release(None)


@pytest.mark.slow
def test_a_graph_that_is_reset_keeps_no_output() -> None:
    graph = SoftwareBackend().capture(lambda: torch.ones(3) * 2)
    output = weakref.ref(graph.recording.result)
    graph.reset()
    graph.reset()
    gc.collect()
    assert output() is None
