"""The kernels, compiled for GPUs that are not here, fit into the memory of their processors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.engine.support.programs import run_python

pytest.importorskip("triton")
pytestmark = pytest.mark.slow

# The shared memory of a block in KiB, by the GPU's compute capability.
ROOM = {80: 163, 89: 99, 90: 227}

# Compiles what the tables of ``attention.tuning`` say, as a first step would, and runs nothing.
COMPILE = """
import json, os, sys
os.environ["TRITON_CACHE_DIR"] = {cache!r}
sys.path.insert(0, "benchmarks")
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit
from attention_cases import DecodeCase, Heads, PrefillCase
from sample_engine.attention import triton_backend

ARCHITECTURE = {architecture}


class Nobody:
    def get_current_target(self):
        return GPUTarget("cuda", ARCHITECTURE, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device=None):
        return 0


sizes, run = {{}}, jit.JITFunction.run


def compile_it(self, *args, grid, warmup, **kwargs):
    kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
    sizes[self.fn.__name__] = kernel.metadata.shared


driver.set_active(Nobody())
jit.JITFunction.run = compile_it
capability = divmod(ARCHITECTURE, 10)
triton_backend.capability_of = lambda device: capability
cpu, heads = torch.device("cpu"), Heads(32, 8, {dim}, torch.{dtype}, {fp8_cache})
for case in (PrefillCase(2, 512, 16, cpu, heads), DecodeCase(1, 4096, 16, cpu, heads)):
    backend = triton_backend.TritonBackend(case.spec)
    metadata = backend.build(case.common)
    backend.forward(case.query, case.cache, metadata, case.out)
print("SIZES", json.dumps(sizes))
"""


@pytest.mark.parametrize(
    ("architecture", "dtype", "fp8_cache"),
    [
        (80, "bfloat16", False),
        (89, "float32", False),
        (90, "bfloat16", False),
        (89, "bfloat16", True),
    ],
)
def test_wide_heads_fit_into_shared_memory(
    tmp_path: Path, architecture: int, dtype: str, fp8_cache: bool
) -> None:
    code = COMPILE.format(
        architecture=architecture, dim=256, dtype=dtype, fp8_cache=fp8_cache, cache=str(tmp_path)
    )
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("SIZES "))
    sizes = json.loads(line.removeprefix("SIZES "))
    assert set(sizes) == {"_prefill_paged_kernel", "_decode_paged_kernel", "_combine_splits_kernel"}
    assert max(sizes.values()) <= ROOM[architecture] * 1024, sizes
