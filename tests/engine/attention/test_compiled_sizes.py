"""The kernels, compiled for GPUs that are not here, fit into the memory of their processors."""

from __future__ import annotations

import json
from importlib.metadata import version
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
from triton import knobs
from attention_cases import DecodeCase, Heads, PrefillCase
from compile_ahead import only_compile
from sample_engine.attention import triton_backend

sizes = {{}}


def listen(*, src, metadata, **_):
    sizes[src.fn.__name__] = metadata["shared"]


only_compile({architecture})
knobs.compilation.listener = listen
triton_backend.capability_of = lambda device: divmod({architecture}, 10)
triton_backend.num_processors = lambda device: 100
cpu, heads = torch.device("cpu"), Heads(32, 8, {dim}, torch.{dtype}, {fp8_cache})
for case in (PrefillCase([512] * 2, 16, cpu, heads), DecodeCase([4096], 16, cpu, heads)):
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
    in_gluon = architecture == 90 and version("triton").startswith("3.6.")  # written for that
    prefill = "_hopper_kernel" if in_gluon else "_prefill_paged_kernel"
    assert set(sizes) == {prefill, "_decode_paged_kernel", "_combine_splits_kernel"}
    assert max(sizes.values()) <= ROOM[architecture] * 1024, sizes
