"""Measures an engine step on the CPU, beside the model: schedule, prepare, update.

No model is run. While Python does this, the GPU waits: at batch 1 the three together should stay
well under the time of a forward pass. With a GPU the inputs are copied to it, as they are in the
engine; otherwise they stay where they are.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

import torch
from arguments import has_gpu
from results_file import parser, publish, table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sample_engine.batch.input_batch import InputBatch
from sample_engine.batch.request import Request
from sample_engine.batch.request_limits import SchedulerLimits
from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.batch.scheduled_batch import ScheduledBatch, StepResult
from sample_engine.scheduler import Scheduler

MODEL_LEN = 8192
BLOCK_SIZE = 16
PROMPT = 1000
WARM_UP = 50
LIMITS = SchedulerLimits(
    num_blocks=40_000,
    block_size=BLOCK_SIZE,
    max_model_len=MODEL_LEN,
    max_num_seqs=64,
    max_num_batched_tokens=2048,
)


def answer(batch: ScheduledBatch) -> StepResult:
    """Return what a model might say."""
    return StepResult(tuple((7,) if part.samples else () for part in batch.requests), ())


def measure(batch_size: int, temperature: float, steps: int, device: torch.device) -> list[float]:
    """Return the median microseconds of schedule, prepare and update in a decode step."""
    scheduler = Scheduler(LIMITS)
    inputs = InputBatch(64, 2048, MODEL_LEN, BLOCK_SIZE, device)
    params = SamplingParams(max_tokens=steps * 2, temperature=temperature, ignore_eos=True)
    for number in range(batch_size):
        scheduler.add(Request(f"r{number}", [number] * PROMPT, params, number, number))
    times: list[list[float]] = [[], [], []]
    batch = scheduler.schedule()
    while not all(part.samples for part in batch.requests) or scheduler.waiting:
        inputs.prepare(batch)
        scheduler.postprocess(batch, answer(batch))
        batch = scheduler.schedule()
    scheduler.postprocess(batch, answer(batch))
    for number in range(WARM_UP + steps):
        started = time.perf_counter()
        batch = scheduler.schedule()
        scheduled = time.perf_counter()
        with torch.inference_mode():
            inputs.prepare(batch)
        prepared = time.perf_counter()
        result = answer(batch)
        ran = time.perf_counter()
        scheduler.postprocess(batch, result)
        ended = time.perf_counter()
        if number >= WARM_UP:
            spans = (scheduled - started, prepared - scheduled, ended - ran)
            for kept, span in zip(times, spans, strict=True):
                kept.append(span * 1e6)
    return [statistics.median(kept) for kept in times]


def main() -> None:
    """Measure, print, and keep the results if that is asked for."""
    options = parser("CPU cost of an engine step beside the model.", rounds=600).parse_args()
    torch.set_num_threads(1)
    device = torch.device("cuda" if has_gpu() else "cpu")
    rows, data = [], {}
    for batch_size in (1, 32, 64):
        for temperature in (0.0, 1.0):
            times = measure(batch_size, temperature, options.rounds, device)
            how = "sampled" if temperature else "greedy"
            figures = [*times, times[0] + times[1], sum(times)]
            rows.append([f"{batch_size} {how}", *(f"{figure:.0f}" for figure in figures)])
            data[f"{batch_size}_{how}"] = [round(figure, 1) for figure in figures]
    header = ["batch", "schedule us", "prepare us", "update us", "before the model us", "all us"]
    publish(
        "engine_step",
        "CPU cost of an engine step",
        table(header, rows),
        {"rounds": options.rounds, "microseconds": data},
        save=options.save,
    )


if __name__ == "__main__":
    main()
