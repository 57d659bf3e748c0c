"""Measures ``capture_pair`` on a real engine: one decode step of the sample engine's model.

It checks the graph of two requests, with lengths that vary, on the software graph or on CUDA. The
first check of a process is told apart: it imports what later ones find.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from arguments import has_gpu
from results_file import parser, publish, table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pytest_cudafork.capture.pair.capture_pair import capture_pair
from sample_engine.config import CUDAGraphMode, EngineConfig
from sample_engine.graphs.execution import CapturedElsewhere
from sample_engine.graphs.model_graphs import ModelGraphs
from sample_engine.model_runner import ModelRunner

LIMIT = 3.0  # seconds on a CPU
LENGTHS = ([400, 30], [7, 610], [1, 2])


def prepared(backend: str, device: str) -> Callable[[], Any]:
    """Return a check of the tiny model's decode step."""
    config = EngineConfig(
        attention_backend=backend, device=device, dtype="float32", num_blocks=400, max_num_seqs=4
    )
    runner = ModelRunner(config)
    graphs = ModelGraphs(
        CUDAGraphMode.FULL, model=runner.model, spec=runner.spec, inputs=runner.inputs,
        execution=CapturedElsewhere(), max_num_reqs=4, max_num_tokens=64,
        max_model_len=runner.max_model_len, sizes=(2,),
    )  # fmt: skip
    (desc,) = graphs.manager.descs
    inputs = runner.inputs.buffers.step.device
    tables = runner.inputs.buffers.table.device["block_table"]
    blocks = tables.shape[1]

    def batch(lengths: list[int]) -> Callable[[], None]:
        def fill() -> None:
            new = torch.tensor(lengths, dtype=torch.int32)
            inputs["seq_lens"][:2].copy_(new)
            inputs["positions"][:2].copy_(new - 1)
            tables[:2].copy_(torch.arange(1, 2 * blocks + 1).view(2, blocks))

        return fill

    names = ("input_ids", "positions", "slot_mapping", "query_start_loc", "seq_lens")
    persistent = {**{name: inputs[name] for name in names}, "block_table": tables}

    def check() -> Any:
        with torch.inference_mode():
            return capture_pair(
                graphs.factory(runner), desc, persistent=persistent,
                outputs=lambda: graphs.outputs_of(desc)[0],
                vary=[batch(lengths) for lengths in LENGTHS],
                backend="cuda" if device == "cuda" else "software",
            )  # fmt: skip

    return check


def main() -> None:
    """Measure, print, and keep the results if that is asked for."""
    options = parser("capture_pair on a decode step of the engine.", rounds=5).parse_args()
    torch.set_num_threads(1)
    device = "cuda" if has_gpu() else "cpu"
    rows, data = [], {}
    for backend in ("lazy_plan", "reference"):
        check = prepared(backend, device)
        times = []
        for _ in range(options.rounds + 1):
            started = time.perf_counter()
            pair = check()
            times.append(time.perf_counter() - started)
        nodes = len(pair.report.captured_nodes or ())
        first, median = times[0], statistics.median(times[1:])
        rows.append([backend, str(nodes), f"{first:.2f}", f"{median:.2f}"])
        data[backend] = {"nodes": nodes, "first_s": round(first, 3), "median_s": round(median, 3)}
    worst = max(each["first_s"] for each in data.values())
    met = worst <= LIMIT if device == "cpu" else None
    text = table(["attention backend", "nodes", "first check s", "median s"], rows)
    if device == "cpu":
        text += f"\n\nfirst check: at most {LIMIT} s: {'met' if met else 'not met'}"
    else:
        text += "\n\nThe first check compiles kernels and imports the profiler."
    publish(
        "engine_check",
        "capture_pair on a decode step of the tiny model",
        text,
        {"rounds": options.rounds, "limit_s": LIMIT, "met": met, "backends": data},
        save=options.save,
    )


if __name__ == "__main__":
    main()
