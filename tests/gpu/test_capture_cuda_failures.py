"""Captures that fail on a GPU: the line that is named, and that the device is usable afterwards."""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.sessions import needs_torch
from tests.support.torch_compile import compiling_here

if TYPE_CHECKING:
    from pytest_cudafork.capture.cuda.backend import CudaBackend

pytestmark = [
    pytest.mark.gpu,
    needs_torch,
]

# What cannot be captured. The line to be named ends in "# here".
FAILING = {
    "item": "y = x + 1\ny.sum().item()  # here\nreturn y * 2",
    "print": "y = x + 1\nstr(y)  # here\nreturn y",
    "if": "y = x + 1\nif y.sum() > 0:  # here\n    y = y * 2\nreturn y",
    "nonzero": "y = x > 0\nreturn y.nonzero()  # here",
    "mask": "return x[x > 0]  # here",
    "cpu": "y = x + 1\nreturn y.cpu()  # here",
    "tensor from a list": "y = torch.tensor([1.0], device='cuda')  # here\nreturn x + y[0]",
    "synchronize": "y = x + 1\ntorch.cuda.synchronize()  # here\nreturn y * 2",
    "stream synchronize": "y = x + 1\ntorch.cuda.current_stream().synchronize()  # here\nreturn y",
    "event": "e = torch.cuda.Event()\ne.record()\ny = x + 1\ne.query()  # here\nreturn y",
    "event synchronize": "e = torch.cuda.Event()\ne.record()\ne.synchronize()  # here\nreturn x",
    "swallowed": (
        "try:\n    x.sum().item()  # here\nexcept RuntimeError:\n    pass\ny = x + 1\nreturn y"
    ),
    "swallowed, then its own error": (
        "try:\n    x.sum().item()  # here\nexcept RuntimeError:\n    pass\nraise KeyError('mine')"
    ),
    "ctypes synchronize": "y = x + 1\nlibcuda.cuCtxSynchronize()  # here\nreturn y * 2",
    "ctypes synchronize at the end": "y = x + 1\nlibcuda.cuCtxSynchronize()  # here\nreturn y",
    "ctypes malloc": (
        "y = x + 1\np = ctypes.c_uint64()\n"
        "libcuda.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(1 << 20))  # here\n"
        "z = y * 2\nreturn z"
    ),
    "within a helper": (
        "def helper(t):\n    u = t * 2\n    libcuda.cuCtxSynchronize()  # here\n    return u\n"
        "y = helper(x)\nreturn y + 1"
    ),
    "unjoined": (
        "s = side\ns.wait_stream(torch.cuda.current_stream())\n"
        "with torch.cuda.stream(s):\n    y = x + 1  # here\nreturn y"
    ),
    "capture within": (
        "g = torch.cuda.CUDAGraph()\nwith torch.cuda.graph(g):  # here\n    y = x + 1\nreturn y"
    ),
}


@pytest.fixture
def backend() -> Iterator[CudaBackend]:
    """A backend; afterwards torch and the driver must be as if nothing had failed."""
    import torch

    from pytest_cudafork.capture.cuda.backend import CudaBackend

    gc.collect()  # graphs of earlier tests: to free one breaks a capture that is under way
    made = CudaBackend()
    x = torch.ones(8, device="cuda")
    stream = torch.cuda.current_stream()
    collecting, mode = gc.isenabled(), torch.cuda.get_sync_debug_mode()
    yield made
    assert torch.cuda.current_stream() == stream
    assert not torch.cuda.is_current_stream_capturing()
    assert (gc.isenabled(), torch.cuda.get_sync_debug_mode()) == (collecting, mode)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()  # fails while the allocator believes in a capture
    assert (x + 1).sum().item() == 16
    torch.rand(4, device="cuda")  # fails while a generator believes in a capture
    graph = made.capture(lambda: torch.rand(4, device="cuda") + x[:4])
    graph.replay()
    first = graph.recording.result.clone()
    graph.replay()
    assert not torch.equal(first, graph.recording.result)
    plain = torch.cuda.CUDAGraph()
    with torch.cuda.graph(plain):
        y = x * 3
    plain.replay()
    assert y.sum().item() == 24


def user_function(tmp_path: Path, body: str) -> tuple[Any, str]:
    """A function of a file of its own, and the place that is to be named."""
    import torch

    source = f"def fn():\n{textwrap.indent(body, '    ')}\n"
    path = tmp_path / "user_code.py"
    path.write_text(source, encoding="utf-8")
    module = types.ModuleType("user_code")
    module.__dict__.update(
        torch=torch,
        ctypes=ctypes,
        libcuda=ctypes.CDLL("libcuda.so.1"),
        side=torch.cuda.Stream(),
        x=torch.ones(8, device="cuda"),
    )
    exec(compile(source, str(path), "exec"), module.__dict__)
    line = next(n for n, text in enumerate(source.splitlines(), 1) if text.endswith("# here"))
    return module.fn, f"user_code.py:{line}"


@pytest.mark.parametrize("body", list(FAILING.values()), ids=list(FAILING))
def test_a_capture_that_fails_names_the_line(
    backend: CudaBackend, tmp_path: Path, body: str
) -> None:
    from pytest_cudafork.errors import CaptureFailedError

    fn, place = user_function(tmp_path, body)
    with pytest.raises(CaptureFailedError) as caught:
        backend.capture(fn)
    finding = caught.value.finding
    assert finding.check in ("capture-failed", "host-sync")
    assert finding.where.endswith(place), finding
    assert finding.what
    assert finding.why
    assert finding.todo


def test_a_wait_for_the_gpu_is_told_in_the_users_words(
    backend: CudaBackend, tmp_path: Path
) -> None:
    from pytest_cudafork.errors import CaptureFailedError

    fn, _ = user_function(tmp_path, FAILING["item"])
    with pytest.raises(CaptureFailedError) as caught:
        backend.capture(fn)
    assert ".item()" in caught.value.finding.what
    assert caught.value.__cause__ is not None


def test_unjoined_work_is_told_as_such(backend: CudaBackend, tmp_path: Path) -> None:
    from pytest_cudafork.errors import CaptureFailedError

    fn, _ = user_function(tmp_path, FAILING["unjoined"])
    with pytest.raises(CaptureFailedError) as caught:
        backend.capture(fn)
    assert "not joined" in caught.value.finding.what
    assert "wait_stream" in caught.value.finding.todo


@pytest.mark.parametrize("error", [KeyError, AssertionError, KeyboardInterrupt, RuntimeError])
def test_an_error_of_the_users_own_passes(backend: CudaBackend, error: type[BaseException]) -> None:
    import torch

    x = torch.ones(8, device="cuda")

    def fn() -> None:
        y = x + 1
        y.normal_()
        raise error("mine")

    with pytest.raises(error, match="mine"):
        backend.capture(fn)


def test_a_pool_survives_a_capture_that_failed(backend: CudaBackend, tmp_path: Path) -> None:
    import torch

    from pytest_cudafork.errors import CaptureFailedError

    pool = backend.new_pool()
    x = torch.ones(8, device="cuda")
    first = backend.capture(lambda: x * 2, pool=pool)
    fn, _ = user_function(tmp_path, FAILING["item"])
    for _ in range(2):
        with pytest.raises(CaptureFailedError):
            backend.capture(fn, pool=pool)
    second = backend.capture(lambda: x * 3, pool=pool)
    first.replay()
    second.replay()
    assert first.recording.result[0].item() == 2
    assert second.recording.result[0].item() == 3


def test_failing_again_and_again_keeps_no_memory(backend: CudaBackend, tmp_path: Path) -> None:
    import torch

    from pytest_cudafork.errors import CaptureFailedError

    fn, _ = user_function(
        tmp_path, "y = torch.ones(1 << 24, device='cuda')\ny.sum().item()  # here"
    )

    def fail() -> None:
        with pytest.raises(CaptureFailedError):
            backend.capture(fn)
        gc.collect()
        torch.cuda.empty_cache()

    fail()
    reserved = torch.cuda.memory_reserved()
    for _ in range(4):
        fail()
    assert torch.cuda.memory_reserved() == reserved


def test_a_stream_that_is_being_captured_is_refused_and_left_alone(backend: CudaBackend) -> None:
    import torch

    from pytest_cudafork.errors import CaptureFailedError

    x = torch.ones(8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + 1
        for attempt in (backend.capture, backend.record):
            with pytest.raises(CaptureFailedError, match="under way") as caught:
                attempt(lambda: x * 2)
            assert Path(__file__).name in caught.value.finding.where
        z = y * 2
    graph.replay()
    assert z.sum().item() == 32


def test_a_capture_of_a_capture_is_refused(backend: CudaBackend) -> None:
    import torch

    from pytest_cudafork.errors import CaptureFailedError

    x = torch.ones(8, device="cuda")
    with pytest.raises(CaptureFailedError, match="under way"):
        backend.capture(lambda: backend.capture(lambda: x + 1))


def test_work_on_a_stream_that_is_not_captured_is_found(backend: CudaBackend) -> None:
    import torch

    x, out, other = torch.ones(8, device="cuda"), torch.zeros(8, device="cuda"), torch.cuda.Stream()

    def fn() -> Any:
        with torch.cuda.stream(other):
            out.add_(x)
        return x * 2

    graph = backend.capture(fn)
    assert [finding.check for finding in graph.findings] == ["not-captured"]
    assert graph.findings[0].where.endswith(f":{fn.__code__.co_firstlineno + 2}")
    assert len(graph.recording.nodes or ()) == 1


def test_work_on_the_default_stream_is_found_or_refused(backend: CudaBackend) -> None:
    """It depends on how the captured stream was made whether CUDA refuses it."""
    import torch

    from pytest_cudafork.errors import CaptureFailedError

    x, out = torch.ones(8, device="cuda"), torch.zeros(8, device="cuda")

    def fn() -> Any:
        with torch.cuda.stream(torch.cuda.default_stream()):
            out.add_(x)
        return x * 2

    try:
        findings = backend.capture(fn).findings
    except CaptureFailedError as failed:
        findings = (failed.finding,)
    assert [finding.check for finding in findings] in (["not-captured"], ["capture-failed"])
    assert findings[0].where.endswith(f":{fn.__code__.co_firstlineno + 2}")


def test_work_on_a_stream_that_joins_is_part_of_the_graph(backend: CudaBackend) -> None:
    import torch

    x, side = torch.ones(8, device="cuda"), torch.cuda.Stream()

    def fn() -> Any:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x + 1
        z = x * 2
        torch.cuda.current_stream().wait_stream(side)
        return y + z

    graph = backend.capture(fn)
    assert graph.findings == ()
    assert len(graph.recording.nodes or ()) == 3
    graph.replay()
    assert graph.recording.result.tolist() == [4.0] * 8


def test_memory_from_another_stream_that_the_graph_uses_is_outside_its_pool(
    backend: CudaBackend,
) -> None:
    import torch

    x, other = torch.ones(1 << 20, device="cuda"), torch.cuda.Stream()
    with torch.cuda.stream(other):  # the allocator keeps the rest of its piece: no cudaMalloc below
        held = torch.empty(1 << 20, device="cuda")

    def fn() -> Any:
        with torch.cuda.stream(other):
            scratch = torch.empty(1 << 20, device="cuda")
        return torch.add(x, 1, out=scratch)

    graph = backend.capture(fn)
    assert [finding.check for finding in graph.findings] == ["outside-pool"]
    assert graph.findings[0].where.endswith(f":{fn.__code__.co_firstlineno + 2}")
    del held


def test_a_freed_input_is_named_before_the_replay_reads_it(backend: CudaBackend) -> None:
    import torch

    from pytest_cudafork.errors import ReplayFailedError

    held = {"x": torch.ones(8, device="cuda")}

    def fn() -> Any:
        return held["x"] * 2

    graph = backend.capture(fn)
    graph.replay()
    del held["x"]
    with pytest.raises(ReplayFailedError) as caught:
        graph.replay()
    finding = caught.value.finding
    assert finding.check == "freed-memory"
    assert "float32[8]" in finding.what
    assert finding.where.endswith(f":{fn.__code__.co_firstlineno + 1}")


def test_a_workspace_that_was_resized_is_named(backend: CudaBackend) -> None:
    import torch

    from pytest_cudafork.errors import ReplayFailedError

    workspace, x = torch.zeros(8, device="cuda"), torch.ones(8, device="cuda")
    graph = backend.capture(lambda: workspace.copy_(x))
    graph.replay()
    workspace.resize_(1 << 22)
    with pytest.raises(ReplayFailedError, match="moved"):
        graph.replay()


def test_host_memory_of_a_copy_that_is_gone_is_named(backend: CudaBackend) -> None:
    import torch

    from pytest_cudafork.errors import CaptureFailedError, ReplayFailedError

    out = torch.zeros(4, device="cuda")

    def fn() -> None:
        out.copy_(torch.full((4,), 7.0), non_blocking=True)

    try:
        graph = backend.capture(fn)
    except CaptureFailedError as failed:
        pytest.skip(f"this driver refuses unpinned memory at once: {failed}")
    with pytest.raises(ReplayFailedError) as caught:
        graph.replay()
    assert "host memory" in caught.value.finding.what


def test_replaying_what_was_reset_is_told(backend: CudaBackend) -> None:
    import torch

    from pytest_cudafork.errors import ReplayFailedError

    x = torch.ones(8, device="cuda")
    graph = backend.capture(lambda: x * 2)
    graph.reset()
    with pytest.raises(ReplayFailedError, match="has been reset"):
        graph.replay()


@pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="cupy is not installed")
def test_memory_of_another_library_gives_no_false_alarm(backend: CudaBackend) -> None:
    import torch

    cupy = pytest.importorskip("cupy")
    array = cupy.ones(8, dtype=cupy.float32)

    def fn() -> Any:
        return torch.as_tensor(array, device="cuda") * 2  # a tensor of its own at each call

    backend.record(fn)
    graph = backend.capture(fn)
    gc.collect()
    graph.replay()
    assert graph.recording.result.tolist() == [2.0] * 8


@pytest.mark.filterwarnings("ignore")  # the compiler's own advice
def test_compiled_code_gives_no_false_alarm(backend: CudaBackend) -> None:
    import torch

    compiled = torch.compile(lambda t: torch.softmax(t * 2 + 1, -1).sum(-1))
    x = torch.randn(8, 64, device="cuda")
    with compiling_here():
        backend.record(lambda: compiled(x))
    graph = backend.capture(lambda: compiled(x))
    gc.collect()
    graph.replay()
    assert graph.findings == ()
    torch.testing.assert_close(graph.recording.result, compiled(x))
