"""The backend that needs no GPU: record, capture, replay, reset."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.software.backend import SoftwareBackend  # noqa: E402
from pytest_cudafork.capture.software.pool import Pool  # noqa: E402
from pytest_cudafork.capture.stand_ins.tensors.cuda_tensors import CudaTensors  # noqa: E402
from pytest_cudafork.errors import CaptureFailedError, ReplayFailedError  # noqa: E402


def test_it_can_be_used_wherever_torch_can() -> None:
    backend = SoftwareBackend()
    assert (backend.name, backend.device, backend.why_not()) == ("software", "cpu", None)
    assert isinstance(backend.new_pool(), Pool)
    backend.synchronize()
    assert "Streams and events: work runs in the order" in backend.differences()


def test_code_that_is_shown_a_gpu_is_told_of_its_device() -> None:
    backend, unknown = SoftwareBackend(), torch.ones(2)
    assert backend.device_of(unknown) == torch.device("cpu")
    with CudaTensors():
        there, here = torch.ones(2, device="cuda"), torch.ones(2)
        assert backend.device == "cuda"
        types = [backend.device_of(each).type for each in (there, here, unknown)]
        assert types == ["cuda", "cpu", "cuda"]
        assert backend.device_of(torch.ones(2, device="meta")).type == "meta"
    assert backend.device == "cpu"


def test_a_recorded_run_happens_and_is_listed() -> None:
    x = torch.ones(2)
    recording = SoftwareBackend().record(lambda: x.add_(1))
    assert x.tolist() == [2, 2]
    assert recording.result is x
    assert recording.nodes is not None
    assert [node.name for node in recording.nodes] == ["aten::add_"]
    assert recording.uses is not None
    assert [(use.reads, use.writes, use.owned) for use in recording.uses] == [(True, True, False)]


def test_a_capture_happens_at_replays_only_until_it_is_reset() -> None:
    x = torch.ones(2)
    graph = SoftwareBackend().capture(lambda: x.add_(1))
    assert x.tolist() == [1, 1]
    graph.replay()
    graph.replay()
    assert x.tolist() == [3, 3]
    graph.reset()
    graph.reset()
    assert graph.recording.result is None
    with pytest.raises(ReplayFailedError, match="was reset"):
        graph.replay()


def test_a_refusal_that_is_swallowed_or_becomes_another_error_fails_the_capture() -> None:
    x = torch.ones(1)

    def swallows() -> Any:
        with contextlib.suppress(Exception):
            x.item()
        return x * 2

    def changes() -> None:
        try:
            x.item()
        except CaptureFailedError as error:
            raise KeyError from error

    for fn in (swallows, changes):
        with pytest.raises(CaptureFailedError, match="reads a value on the host"):
            SoftwareBackend().capture(fn)


def test_an_error_of_the_code_passes() -> None:
    def fails() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        SoftwareBackend().capture(fails)


def test_tensors_that_stand_for_numbers_of_the_host_are_taken_by_value() -> None:
    x, factor = torch.ones(2), torch.tensor(2.0)
    graph = SoftwareBackend(host_scalars=[factor]).capture(lambda: x * factor)
    factor.fill_(5)
    graph.replay()
    assert graph.recording.result.tolist() == [2, 2]
