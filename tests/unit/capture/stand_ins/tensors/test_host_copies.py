"""Copies between host and device: who is told of one, and what a capture refuses."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from pytest_cudafork.capture.interface import seen  # noqa: E402
from pytest_cudafork.capture.stand_ins.capturing.graphs import CUDAGraph, graph  # noqa: E402
from pytest_cudafork.capture.stand_ins.tensors import host_copies  # noqa: E402
from pytest_cudafork.capture.stand_ins.tensors.storages import KNOWN  # noqa: E402
from pytest_cudafork.errors import CaptureFailedError  # noqa: E402


@pytest.fixture
def places() -> tuple[Any, Any, Any]:
    there, pinned, host = torch.ones(4), torch.ones(4), torch.ones(4)
    KNOWN.note_gpu(there, 0)
    KNOWN.note_pinned(pinned.untyped_storage())
    KNOWN.note_hosts(host)
    return there, pinned, host


def test_outside_of_captures_who_watches_hears_of_copies_to_the_host(
    places: tuple[Any, Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    there, _, host = places
    heard: list[Any] = []

    class Watch:
        host_copies = staticmethod(heard.append)

    assert seen.watch_in_force() is None
    monkeypatch.setattr(host_copies, "watch_in_force", lambda: Watch)
    host_copies.check_copy("copy_", host, there, to_host=False, waits=True)
    assert not heard
    host_copies.check_copy("copy_", there, host, to_host=True, waits=True)
    host_copies.check_assignment(host, 0, there[0])
    assert [each.data_ptr() for each in heard] == [there.data_ptr()] * 2
    host_copies.check_in_place(torch.Tensor.fill_, (host, there[0]))
    host_copies.refuse_index(host)


def test_within_a_capture_copies_are_taken_and_refused(places: tuple[Any, Any, Any]) -> None:
    there, pinned, host = places
    with graph(CUDAGraph()):
        host_copies.check_copy("copy_", pinned, there, to_host=False, waits=False)
        host_copies.check_copy("copy_", there, pinned, to_host=True, waits=False)
        host_copies.check_copy("to", pinned, torch.float64, to_host=False, waits=False)
        host_copies.check_copy("to", there, None, to_host=True, waits=False)
        host_copies.check_copy("copy_", host[:0], there[:0], to_host=False, waits=True)
        host_copies.check_assignment(there, slice(None), there)
        host_copies.check_assignment(there, slice(None), 3)
        host_copies.check_assignment(there, there > 0, host[0])
        host_copies.check_in_place(torch.Tensor.fill_, (there, host[0]))
        host_copies.check_in_place(torch.Tensor.add, (host, there[0]))
        host_copies.refuse_index((there.long(), host > 0, slice(1), None))


@pytest.mark.parametrize(
    ("check", "words"),
    [
        (lambda there, pinned, host: (there, 0, host[0]), "from host data"),
        (lambda there, pinned, host: (there, there > 0, host), "from host data"),
        (lambda there, pinned, host: (host, 0, there[0]), "reads a value on the host"),
        (lambda there, pinned, host: (pinned, 0, there[0]), "an assignment at .* waits"),
        (lambda there, pinned, host: (there, slice(4), pinned), "x.key..copy_"),
    ],
)
def test_an_assignment_copies_and_waits(
    places: tuple[Any, Any, Any], check: Any, words: str
) -> None:
    with pytest.raises(CaptureFailedError, match=words), graph(CUDAGraph()):
        host_copies.check_assignment(*check(*places))


def test_copies_of_lists_are_taken_and_refused_one_by_one(places: tuple[Any, Any, Any]) -> None:
    there, pinned, host = places
    with graph(CUDAGraph()):
        host_copies.check_copies([there, pinned, host], [pinned, there, host], True)
    with pytest.raises(CaptureFailedError, match=r"_foreach_copy_ at .* waits"), graph(CUDAGraph()):
        host_copies.check_copies([there, there], [there, pinned])


def test_the_host_cannot_work_with_what_lies_on_the_device(places: tuple[Any, Any, Any]) -> None:
    there, _, host = places
    index = torch.tensor([1])
    KNOWN.note_hosts(index)
    with pytest.raises(CaptureFailedError, match="reads a value on the host"), graph(CUDAGraph()):
        host_copies.check_in_place(torch.Tensor.fill_, (host, there[0]))
    with pytest.raises(CaptureFailedError, match="an index that lies"), graph(CUDAGraph()):
        host_copies.refuse_index([index])
