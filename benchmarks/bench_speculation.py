"""Measures what speculation brings: tokens per verification step, and speed beside none.

Tokens per step are a property of model and head, and the same on every device but for rounding;
speed is one of the machine. The prompts are held-out code of this Python's own library, and the
texts go to their end or to ``--tokens``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

import torch
from arguments import at_least, needs_gpu
from results_file import parser, publish, table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from speculation_prompts import METHODS, NONE, generate, make_core, prompts

from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.config import CUDAGraphMode

# What must be reached: (method, temperature) to tokens per step.
TARGETS = {
    ("ngram k=5", 0.0): 1.7,
    ("eagle k=3", 0.0): 3.3,
    ("eagle k=5", 0.0): 4.3,
    ("eagle k=3", 1.0): 2.6,
}
BATCHES = (1, 32)


def methods(options: argparse.Namespace) -> dict[str, dict[str, Any] | None]:
    """What the speeds are those of, with ``--step-graphs`` each speculator in both ways."""
    found = dict(METHODS)
    for name, given in METHODS.items():
        if options.step_graphs and given is not None:
            found[f"{name}, no step graphs"] = {**given, "step_graphs": False}
    return found


def params_of(options: argparse.Namespace, temperature: float, count: int) -> list[SamplingParams]:
    """Each request has a seed of its own."""
    return [
        SamplingParams(
            temperature=temperature, seed=options.seed + number, max_tokens=options.tokens
        )
        for number in range(count)
    ]


def acceptance(options: argparse.Namespace) -> tuple[list[list[str]], dict[str, Any]]:
    """Tokens per step of each method with a target."""
    texts = prompts(options.prompts, options.prompt_bytes, options.seed)
    rows, data = [], {}
    for (name, temperature), target in TARGETS.items():
        core = make_core(METHODS[name], options.device, dtype=options.dtype)
        metrics = generate(core, texts, params_of(options, temperature, len(texts))).metrics
        core.shutdown()
        reached, rates = metrics["tokens_per_step"], metrics["acceptance_per_position"]
        shown = ", ".join(f"{rate:.2f}" for rate in rates)
        how = "greedy" if temperature == 0 else f"T={temperature:g}"
        rows.append([f"{name}, {how}", f"{reached:.2f}", f"{target:.1f}", shown])
        data[f"{name} {how}"] = {
            "tokens_per_step": round(reached, 3),
            "target": target,
            "acceptance_per_position": [round(rate, 3) for rate in rates],
            "steps": metrics["decode_steps"],
        }
    return rows, data


def speeds(options: argparse.Namespace) -> tuple[list[list[str]], dict[str, Any]]:
    """Decoded tokens per second of each method, with each way to run graphs.

    All of a batch take turns. ``x none`` is over no speculation with the same graphs, ``x first
    mode`` over the same method with the first of ``--modes``.
    """
    texts = prompts(max(BATCHES), options.prompt_bytes, options.seed)
    rows, data = [], {}
    for batch in BATCHES:
        cores = {
            (mode, name): make_core(
                speculative,
                options.device,
                dtype=options.dtype,
                cudagraph_mode=CUDAGraphMode(mode),
                max_num_seqs=batch,
                num_blocks=batch * (options.prompt_bytes + options.tokens) // 16 + 16 * batch,
                enable_prefix_caching=False,
            )
            for mode in options.modes
            for name, speculative in methods(options).items()
        }
        found: dict[tuple[str, str], list[float]] = {key: [] for key in cores}
        for number in range(options.rounds + 1):
            for key, core in cores.items():
                run = generate(core, texts[:batch], params_of(options, 0.0, batch))
                if number:  # the first round compiles kernels and fills pools of memory
                    found[key].append(run.speed)
        medians = {key: statistics.median(speed) for key, speed in found.items()}
        for (mode, name), speed in medians.items():
            gain = speed / medians[mode, NONE]
            over_first = speed / medians[options.modes[0], name]
            least, most = min(found[mode, name]), max(found[mode, name])
            figures = [f"{speed:.0f}", f"{gain:.2f}", f"{over_first:.2f}"]
            rows.append([f"{batch}, {name}, {mode}", *figures, f"{least:.0f}", f"{most:.0f}"])
            data[f"{batch} {name} {mode}"] = {
                "tokens_per_second": round(speed),
                "least_and_most": [round(least), round(most)],
                "gain": round(gain, 3),
                "over_first_mode": round(over_first, 3),
            }
        for core in cores.values():
            core.shutdown()
    return rows, data


def main() -> None:
    """Measure, print, and keep the results if that is asked for."""
    made = parser("Tokens per step of each speculator, and its speed next to none.", rounds=3)
    made.add_argument("--device", default="auto", help="auto, cpu, cuda; default auto")
    made.add_argument("--dtype", default="auto", help="auto, float32, bfloat16; default auto")
    made.add_argument("--prompts", type=at_least(1), default=128, help="default 128")
    made.add_argument("--prompt-bytes", type=at_least(1), default=128, help="default 128")
    made.add_argument("--tokens", type=at_least(1), default=256, help="of each text; default 256")
    made.add_argument("--seed", type=int, default=1, help="of prompts and sampling; default 1")
    made.add_argument(
        "--modes", nargs="+", default=["NONE"], help="CUDA graph modes of the speeds; default NONE"
    )
    made.add_argument(
        "--step-graphs",
        action="store_true",
        help="speeds with verification and drafts as graphs, too",
    )
    made.add_argument("--only", choices=("acceptance", "speed"), help="one of the two parts")
    options = made.parse_args()
    if options.device.startswith("cuda"):
        needs_gpu(made)
    torch.set_num_threads(1)
    pages, data = [], {}
    if options.only != "speed":
        rows, data["acceptance"] = acceptance(options)
        header = ["speculator", "tokens per step", "target", "accepted by position"]
        pages.append(table(header, rows))
    if options.only != "acceptance":
        rows, data["speed"] = speeds(options)
        header = ["batch, speculator, graphs", "tokens/s", "x none", "x first mode"]
        header += ["least", "most"]
        pages.append(table(header, rows))
    keys = (
        "device",
        "dtype",
        "prompts",
        "prompt_bytes",
        "tokens",
        "seed",
        "rounds",
        "modes",
        "step_graphs",
    )
    settings = {key: getattr(options, key) for key in keys}
    publish(
        "speculation",
        "Speculation: tokens per step, and speed",
        "\n\n".join(pages),
        {"settings": settings, **data},
        save=options.save,
    )


if __name__ == "__main__":
    main()
