"""Launches of interpreted Triton kernels are nodes of a software graph and replay exactly."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.triton_here import INTERPRETS, VARIABLE

torch = pytest.importorskip("torch")
for _name in ("triton", "numpy"):
    if importlib.util.find_spec(_name) is None:
        pytest.skip(f"{_name} is not installed", allow_module_level=True)

if not INTERPRETS:
    importlib.import_module("triton.language")  # GPU tests of this process compile

# Kernels are interpreted if triton is imported, and they are defined, while the variable is set.
with pytest.MonkeyPatch.context() as _patch:
    _patch.setenv(VARIABLE, "1")
    import triton
    import triton.language as tl

    @triton.jit  # type: ignore[untyped-decorator]  # triton is not followed
    def _scale_kernel(x_ptr, out_ptr, n, factor, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + at, mask=at < n)
        tl.store(out_ptr + at, x * factor, mask=at < n)

    @triton.jit  # type: ignore[untyped-decorator]  # triton is not followed
    def _total_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.atomic_add(out_ptr, tl.sum(tl.load(x_ptr + at, mask=at < n, other=0.0)))

    _tuned = triton.autotune([triton.Config({"BLOCK": 16})], key=["n"], reset_to_zero=["out_ptr"])(
        _total_kernel
    )
    _tuned_by_two = triton.autotune(
        [triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})], key=["n"]
    )(_scale_kernel)
    _guessed = triton.heuristics({"BLOCK": lambda args: 16 if args["n"] > 8 else 8})(_scale_kernel)

INTERPRETED = type(tl.standard.sum).__name__ == "InterpretedFunction"

from pytest_cudafork.capture.software.backend import SoftwareBackend  # noqa: E402
from pytest_cudafork.errors import CaptureFailedError  # noqa: E402


def _scaled(x: Any, factor: float, kernel: Any = _scale_kernel, **block: int) -> Any:
    out = torch.empty_like(x)

    def grid(meta: Any) -> tuple[int, ...]:
        return (triton.cdiv(x.numel(), meta["BLOCK"]),)

    kernel[grid](x, out, x.numel(), factor, **block)
    return out


@pytest.mark.skipif(INTERPRETED, reason="the tests below can run in this process")
def test_in_a_process_of_its_own_where_triton_was_imported_as_a_compiler() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(
        command,
        env={**os.environ, VARIABLE: "1"},
        cwd=Path(__file__).parents[4],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "1 skipped" in done.stdout


@pytest.mark.skipif(not INTERPRETED, reason="the test above runs them in a process of its own")
class TestLaunches:
    """They need Triton's interpreter in this process."""

    @pytest.fixture(autouse=True)
    def interpreter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Triton asks again at a first launch."""
        monkeypatch.setenv(VARIABLE, "1")

    def test_a_launch_is_recorded_not_run_and_replays(self) -> None:
        x = torch.randn(50)
        graph = SoftwareBackend().capture(lambda: _scaled(x * 1.0, 2.0, BLOCK=16) + 1)
        nodes = graph.recording.nodes or ()
        assert [(node.kind, node.name) for node in nodes] == [
            ("op", "aten::mul"),
            ("triton", "_scale_kernel"),
            ("op", "aten::add"),
        ]
        assert all(Path(__file__).name in node.where for node in nodes)
        assert graph.recording.result.isnan().all()
        for _ in range(2):
            x.copy_(torch.randn(50))
            graph.replay()
            assert torch.equal(graph.recording.result, x * 2 + 1)

    def test_a_recorded_run_runs_it_and_has_the_same_nodes(self) -> None:
        x, backend = torch.randn(50), SoftwareBackend()
        eager = backend.record(lambda: _scaled(x, 2.0, BLOCK=16))
        assert torch.equal(eager.result, x * 2)
        assert eager.nodes == backend.capture(lambda: _scaled(x, 2.0, BLOCK=16)).recording.nodes

    def test_the_grid_and_numbers_are_frozen_in_the_capture(self) -> None:
        x, out, host = torch.ones(32), torch.zeros(32), {"programs": 1, "factor": 2.0}

        def fn() -> None:
            _scale_kernel[lambda meta: (host["programs"],)](x, out, 32, host["factor"], BLOCK=16)

        graph = SoftwareBackend().capture(fn)
        host.update(programs=2, factor=9.0)
        graph.replay()
        assert out.tolist() == [2.0] * 16 + [0.0] * 16

    def test_heuristics_run_on_the_host(self) -> None:
        x = torch.randn(50)
        graph = SoftwareBackend().capture(lambda: _scaled(x, 2.0, _guessed))
        graph.replay()
        assert torch.equal(graph.recording.result, x * 2)

    def test_the_hooks_of_a_tuned_kernel_are_recorded_as_work(self) -> None:
        x, out = torch.ones(40), torch.zeros(1)

        def fn() -> None:
            out.zero_()
            _tuned[lambda meta: (triton.cdiv(40, meta["BLOCK"]),)](x, out, 40)

        graph = SoftwareBackend().capture(fn)
        for _ in range(2):
            graph.replay()
            assert out.item() == 40

    def test_tuning_within_a_capture_is_refused(self) -> None:
        x = torch.ones(40)
        with pytest.raises(CaptureFailedError, match="is tuned within the capture") as failure:
            SoftwareBackend().capture(lambda: _scaled(x, 2.0, _tuned_by_two))
        assert "_scale_kernel" in failure.value.finding.what

    def test_a_hook_that_reads_a_value_is_refused(self) -> None:
        x = torch.ones(40)

        def fn() -> None:
            _scale_kernel[lambda meta: (int(x.sum()),)](x, x, 40, 2.0, BLOCK=16)

        with pytest.raises(CaptureFailedError, match="reads a value on the host"):
            SoftwareBackend().capture(fn)
        assert torch._C._len_torch_dispatch_stack() == 0

    def test_numbers_of_the_host_reach_a_kernel_by_value(self) -> None:
        x = torch.ones(16)
        graph = SoftwareBackend().capture(lambda: _scaled(x, torch.tensor(3.0).item(), BLOCK=16))
        graph.replay()
        assert graph.recording.result.tolist() == [3.0] * 16

    def test_launches_of_a_custom_operator_are_recorded(self) -> None:
        @torch.library.custom_op("cudafork_triton::scaled", mutates_args=())  # type: ignore[untyped-decorator]
        def scaled(x: torch.Tensor) -> torch.Tensor:  # type: ignore[name-defined]
            return _scaled(x, 4.0, BLOCK=16)

        x = torch.ones(16)
        graph = SoftwareBackend().capture(lambda: scaled(x))
        assert [node.name for node in graph.recording.nodes or ()] == ["_scale_kernel"]
        graph.replay()
        assert graph.recording.result.tolist() == [4.0] * 16

    @pytest.mark.slow
    @pytest.mark.parametrize("lengths", [[(1, 20), (1, 7), (1, 33)], [(5, 9), (1, 17)]])
    def test_the_attention_of_the_engine_replays_for_other_contents(
        self, lengths: list[tuple[int, int]]
    ) -> None:
        pytest.importorskip("sample_engine")
        from sample_engine.attention.triton_backend import TritonBackend
        from tests.engine.support.attention import Shape, batch_of, run

        batch = batch_of(Shape(), lengths, unwritten=0.0)
        backend = TritonBackend(batch.shape.spec)
        try:
            run(backend, batch)
        except Exception as error:
            if "0-dimensional" in str(error):
                pytest.skip("the interpreter of this Triton cannot loop with this numpy")
            raise
        graph = SoftwareBackend().capture(lambda: run(backend, batch) * 2)
        assert {node.kind for node in graph.recording.nodes or ()} == {"op", "triton"}
        for seed in range(2):
            other = batch_of(Shape(), lengths, seed=seed + 1, unwritten=0.0)
            batch.query.copy_(other.query)
            batch.cache.key.copy_(other.cache.key)
            batch.cache.value.copy_(other.cache.value)
            batch.common.block_table.copy_(other.common.block_table)
            if seed:
                batch.common.seq_lens.sub_(1)
            graph.replay()
            assert torch.equal(graph.recording.result, run(backend, batch) * 2)
