"""Measures a model on several GPUs against one: decode steps, a long prefill, and the sums.

The model has the shape of Llama 3 8B and random weights. A decode step is the difference between a
long and a short generation, with CUDA graphs; the prefill is 8 prompts of 4096 tokens. The sums are
those of one forward pass, captured alone: their share says what the ranks pay for each other.

Sums are in the GPUs' own memory where that can be, as by default in an engine; with ``--nccl`` they
are NCCL's (``disable_custom_all_reduce=True``).
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from arguments import at_least
from results_file import parser, publish, table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tp_core import measured_core

from sample_engine import LLM, SamplingParams
from sample_engine.device.platform import gpu_count

BATCHES = (1, 8, 64)
SHORT, LONG = 16, 144  # tokens
PROMPT = 128
PREFILL = (8, 4096)  # prompts, tokens
STEP_TOKENS = 8192  # tokens of a step, at most


def prompts(count: int, length: int, seed: int) -> list[dict[str, Any]]:
    """Prompts that have nothing in common, so that nothing is cached."""
    chance = random.Random(seed)
    return [{"prompt_token_ids": chance.choices(range(128_000), k=length)} for _ in range(count)]


def timed(llm: LLM, given: list[dict[str, Any]], count: int) -> float:
    """The seconds in which prompts get so many tokens."""
    params = SamplingParams(max_tokens=count, ignore_eos=True)
    began = time.perf_counter()
    outputs = llm.generate(given, params, use_tqdm=False)
    seconds = time.perf_counter() - began
    assert all(len(output.token_ids) == count for output in outputs)
    return seconds


def measure(ranks: int, options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of an engine of so many ranks."""
    found: dict[str, Any] = {"ranks": ranks, "decode_ms": {}, "decode_spread_ms": {}}
    with LLM(
        model=options.model,
        load_format="dummy",
        device="cuda",
        tensor_parallel_size=ranks,
        cudagraph_mode="FULL_AND_PIECEWISE",
        cudagraph_capture_sizes=list(BATCHES),
        max_num_batched_tokens=STEP_TOKENS,
        enable_prefix_caching=False,
        disable_custom_all_reduce=options.nccl,
        core_factory=measured_core,
    ) as llm:
        found["sums"] = llm.info()["sums_over_ranks"]
        found["sums_us"] = {int(size): us for size, us in llm.info()["sums_us"].items()}
        for batch in BATCHES:
            given = prompts(batch, PROMPT, seed=batch)
            timed(llm, given, SHORT)
            spans = [
                (timed(llm, given, LONG) - timed(llm, given, SHORT)) / (LONG - SHORT)
                for _ in range(options.rounds)
            ]
            found["decode_ms"][batch] = round(statistics.median(spans) * 1e3, 3)
            found["decode_spread_ms"][batch] = spread(spans)
        count, length = PREFILL
        timed(llm, prompts(count, length, seed=0), 1)
        times = [timed(llm, prompts(count, length, n), 1) for n in range(1, options.rounds + 1)]
        found["prefill_ms"] = round(statistics.median(times) * 1e3, 1)
        found["prefill_spread_ms"] = spread(times)
    return found


def spread(seconds: list[float]) -> list[float]:
    """The least and the most, in milliseconds."""
    return [round(min(seconds) * 1e3, 2), round(max(seconds) * 1e3, 2)]


def shown(results: list[dict[str, Any]]) -> str:
    """The figures as a table, each against one GPU."""
    one = results[0]
    rows = []
    for batch in BATCHES:
        cells = []
        for each in results:
            step = each["decode_ms"][batch]
            share = each["sums_us"].get(batch, 0.0) / 10 / step
            cells.append(f"{step:.2f} ({one['decode_ms'][batch] / step:.2f}x, {share:.0f} %)")
        rows.append([f"decode step, batch {batch}, ms", *cells])
        rows.append(_between([each["decode_spread_ms"][batch] for each in results]))
    cells = []
    for each in results:
        steps = PREFILL[0] * PREFILL[1] / STEP_TOKENS
        share = each["sums_us"].get(STEP_TOKENS, 0.0) * steps / 10 / each["prefill_ms"]
        ratio = one["prefill_ms"] / each["prefill_ms"]
        cells.append(f"{each['prefill_ms']:.0f} ({ratio:.2f}x, {share:.0f} %)")
    rows.append([f"prefill of {PREFILL[0]} x {PREFILL[1]}, ms", *cells])
    rows.append(_between([each["prefill_spread_ms"] for each in results]))
    header = ["(times one GPU, share of the sums)", *(f"{each['ranks']} GPUs" for each in results)]
    return table(header, rows)


def _between(spreads: list[list[float]]) -> list[str]:
    """The row below another one."""
    return ["between", *(f"{least:.2f} and {most:.2f}" for least, most in spreads)]


def main() -> int:
    """Measure one GPU, two and four, as far as there are so many."""
    options = parser("A model on several GPUs against one.", rounds=5)
    options.add_argument("--model", default="llama-3-8b", help="default llama-3-8b")
    options.add_argument(
        "--nccl", action="store_true", help="all sums by NCCL (disable_custom_all_reduce=True)"
    )
    options.add_argument(
        "--ranks", type=at_least(1), nargs="+", default=[1, 2, 4], help="default 1 2 4"
    )
    given = options.parse_args()
    have = gpu_count()
    results = [measure(ranks, given) for ranks in given.ranks if ranks <= have]
    if not results or results[0]["ranks"] != 1:
        print(f"This needs a GPU, and 1 among --ranks; there are {have} GPUs.", file=sys.stderr)
        return 1
    left_out = [ranks for ranks in given.ranks if ranks > have]
    words = f"\n\nNot measured, for want of GPUs: {left_out} ranks." if left_out else ""
    publish(
        "tensor_parallel",
        f"{given.model} on several GPUs",
        shown(results) + words,
        {"model": given.model, "rounds": given.rounds, "results": results},
        save=given.save,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
