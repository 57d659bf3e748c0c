"""A kernel is compiled once for all batches of a kind of layer, and once for all processes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.engine.support.process import HANG_SECONDS, PROJECT
from tests.support import interpreters

pytest.importorskip("triton")

# Compiles for a Hopper GPU, which need not be there, what many steps launch.
STEPS = """
import dataclasses, json, sys
sys.path.insert(0, "benchmarks")
import torch
from triton import knobs
from compile_ahead import only_compile
from sample_engine.attention import triton_backend
from tests.engine.support.attention import Shape, batch_of

found = []


def listen(*, src, cache_hit, **_):
    found.append((src.fn.__name__, cache_hit))


only_compile(90)
knobs.compilation.listener = listen
triton_backend.capability_of = lambda device: (9, 0)
triton_backend.num_processors = lambda device: 100
shape = Shape(8, 2, 32, 16, torch.bfloat16)
backend = triton_backend.TritonBackend(shape.spec)
table = torch.zeros(64, 256, dtype=torch.int32)
for lengths in (
    [(1, 5)], [(1, 70)], [(1, 4000)], [(1, 1030)] * 16, [(1, 64)] * 5, [(2, 9), (1, 3)], [(3, 900)],
    [(40, 40)], [(33, 300), (1, 7)], [(17, 17), (2, 500), (1, 1)], [(200, 900)] * 16,
):
    batch = batch_of(shape, lengths)
    common = dataclasses.replace(batch.common, block_table=table[: len(lengths)])
    backend.write_kv(batch.query[:, :2], batch.query[:, :2], batch.cache, common.slot_mapping)
    backend.forward(batch.query, batch.cache, backend.build(common), batch.query)
print("FOUND", json.dumps(found))
"""


def _compiled(cache: Path, code: str = STEPS) -> list[tuple[str, bool]]:
    """What a process of its own compiled, and whether it found it in Triton's cache."""
    done = interpreters.run(
        [sys.executable, "-c", code],
        cwd=PROJECT,
        timeout=HANG_SECONDS,
        env={**os.environ, "TRITON_CACHE_DIR": str(cache)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("FOUND "))
    return [(name, hit) for name, hit in json.loads(line.removeprefix("FOUND "))]


@pytest.mark.slow
def test_a_kernel_is_compiled_once_for_all_batches_and_for_all_processes(tmp_path: Path) -> None:
    first = _compiled(tmp_path)
    assert sorted(first) == [
        ("_combine_splits_kernel", False),
        ("_decode_paged_kernel", False),
        ("_prefill_paged_kernel", False),
        ("_write_kv_kernel", False),
    ]
    assert sorted(_compiled(tmp_path)) == [(name, True) for name, _ in sorted(first)]


# The same of an engine that runs.
ENGINE = """
import json
from triton import knobs
from sample_engine import LLM, SamplingParams

found = []


def listen(*, src, cache_hit, **_):
    # what its author calls constant makes its class; what Triton finds out of a call must not
    constants = {p.name: repr(src.constants.get((p.num,))) for p in src.fn.params if p.is_constexpr}
    found.append((f"{src.fn.__name__} {json.dumps(constants, sort_keys=True)}", cache_hit))


knobs.compilation.listener = listen
texts = ["def f(", "class A:", "import os" * 40]
with LLM(device="cuda", worker_method="inproc", num_blocks=200) as llm:
    llm.generate(texts, SamplingParams(max_tokens=20), use_tqdm=False)
    llm.generate(texts[:1], SamplingParams(max_tokens=20), use_tqdm=False)
print("FOUND", json.dumps(found))
"""


@pytest.mark.gpu
@pytest.mark.slow
def test_a_second_engine_finds_what_the_first_one_compiled(tmp_path: Path) -> None:
    first = _compiled(tmp_path, ENGINE)
    assert not any(hit for _, hit in first)
    classes = [name for name, _ in first if name.startswith(("_decode_paged", "_prefill_paged"))]
    assert len(classes) == len(set(classes)), "\n".join(classes)
    assert sorted(_compiled(tmp_path, ENGINE)) == sorted((name, True) for name, _ in first)
