"""What a captured graph holds, in order."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.support.capture_cuda import Library
from tests.support.sessions import needs_torch

pytestmark = needs_torch


def test_nodes_are_listed_in_order_those_of_a_child_in_its_place() -> None:
    from pytest_cudafork.capture.cuda.libcuda import LibCuda
    from pytest_cudafork.capture.cuda.nodes import list_nodes, with_lines

    raw = list_nodes(LibCuda(Library()), 1)
    nodes = with_lines(raw, ["a.py:1", "a.py:2", "a.py:3", "a.py:4"])
    assert [tuple(node) for node in nodes] == [
        ("kernel", "kernel", "a.py:1"),
        ("memset", "memset", "a.py:3"),
        ("kernel", "twice_kernel", "a.py:3"),
        ("memcpy", "memcpy", "a.py:4"),
        ("other", "node of type 99", ""),
    ]
    assert (raw[3].source, raw[3].target) == (0x1000, 0x2000)


def test_a_driver_that_tells_no_names_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_cudafork.capture.cuda.libcuda import LibCuda
    from pytest_cudafork.capture.cuda.nodes import NO_NAME, list_nodes

    monkeypatch.delattr(Library, "cuFuncGetName")
    monkeypatch.delattr(Library, "cuKernelGetName")
    assert list_nodes(LibCuda(Library()), 1)[0].node.name == NO_NAME


def test_work_that_is_being_captured_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from pytest_cudafork.capture.cuda import nodes
    from pytest_cudafork.capture.cuda.libcuda import LibCuda

    assert nodes.work_in_progress() is None, "nothing is initialized for it"
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    stream = SimpleNamespace(cuda_stream=7)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    asked: list[int] = []

    def graph_in_progress(library: LibCuda, stream: int) -> int:
        asked.append(stream)
        return stream == 7

    monkeypatch.setattr(LibCuda, "graph_in_progress", graph_in_progress)
    monkeypatch.setattr(nodes, "load", lambda: LibCuda(Library()))
    assert nodes.work_in_progress() == 5
    stream.cuda_stream = 8
    assert nodes.work_in_progress() is None
    assert asked == [7, 8]

    def no_driver() -> LibCuda:
        raise OSError("no driver")

    monkeypatch.setattr(nodes, "load", no_driver)
    assert nodes.work_in_progress() is None
