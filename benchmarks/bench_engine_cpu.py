"""Measures the engine on a CPU against ``transformers.generate``, on the tiny model in float32.

Decoding: seconds a token of one text, the slope between a short and a long answer, so that the
prompt's pass cancels out. Prefill: seconds until the first token of a prompt. All take turns in one
run, each round in another order; the medians are compared. Texts must be equal.

    python benchmarks/bench_engine_cpu.py --save
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from results_file import parser, publish, table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from sample_engine import LLM, SamplingParams
from sample_engine.model.config_file import TINY_FOLDER

SHORT, LONG = 8, 72  # tokens of an answer
Complete = Callable[[list[int], int], list[int]]


def of_transformers() -> Complete:
    """Greedy completion by transformers."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(TINY_FOLDER, dtype=torch.float32)

    def complete(prompt: list[int], count: int) -> list[int]:
        ids = torch.tensor([prompt])
        mask = torch.ones_like(ids)
        settings = {"do_sample": False, "min_new_tokens": count, "pad_token_id": 0}
        out = model.generate(ids, attention_mask=mask, max_new_tokens=count, **settings)
        found: list[int] = out[0, len(prompt) :].tolist()
        return found

    return complete


def of_engine(llm: LLM) -> Complete:
    """Greedy completion by an engine."""

    def complete(prompt: list[int], count: int) -> list[int]:
        params = SamplingParams(max_tokens=count, ignore_eos=True)
        (output,) = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
        return list(output.outputs[0].token_ids)

    return complete


def seconds(complete: Complete, prompt: list[int], count: int, clock: Callable[[], float]) -> float:
    """How long a completion takes."""
    began = clock()
    complete(prompt, count)
    return clock() - began


def measure(ways: dict[str, Complete], options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Milliseconds a token and of a prefill, the median of all rounds, for each way."""
    chance, clock = random.Random(1), time.process_time if options.cpu_time else time.perf_counter
    text = list((TINY_FOLDER.parent / "llama.py").read_bytes() * 2)
    found: dict[str, dict[str, list[float]]] = {
        name: {"decode": [], "prefill": []} for name in ways
    }
    for complete in ways.values():  # each warms up
        complete(text[: options.prompt], 2)
    for _ in range(options.rounds):
        for name in chance.sample(list(ways), len(ways)):
            short = seconds(ways[name], text[:64], SHORT, clock)
            long = seconds(ways[name], text[:64], LONG, clock)
            found[name]["decode"].append((long - short) / (LONG - SHORT) * 1e3)
            found[name]["prefill"].append(
                seconds(ways[name], text[: options.prompt], 1, clock) * 1e3
            )
    return {
        name: {what: statistics.median(each) for what, each in of.items()}
        for name, of in found.items()
    }


def main() -> int:
    """Measure, and tell."""
    made = parser("The engine on a CPU against transformers.", rounds=7)
    made.add_argument("--threads", type=int, default=2)
    made.add_argument(
        "--cpu-time",
        action="store_true",
        help="of this process, in place of the time that passes: with one thread on a busy machine",
    )
    made.add_argument("--prompt", type=int, default=2000, help="tokens of the long prompt")
    options = made.parse_args()
    torch.set_num_threads(options.threads)
    settings: dict[str, Any] = {
        "device": "cpu",
        "worker_method": "inproc",
        "enable_prefix_caching": False,
        "max_num_seqs": 1,
        "max_num_batched_tokens": options.prompt,
    }
    engines = {name: LLM(attention_backend=name, **settings) for name in ("reference", "sdpa")}
    ways = {"transformers": of_transformers()}
    ways.update({name: of_engine(llm) for name, llm in engines.items()})
    prompt = list(b"def quick_sort(")
    texts = {name: complete(prompt, 24) for name, complete in ways.items()}
    alike = len({tuple(each) for each in texts.values()}) == 1
    found = measure(ways, options)
    for llm in engines.values():
        llm.shutdown()
    peer = found["transformers"]
    rows = [
        [
            name,
            *(f"{each[what]:.2f} ms" for what in ("decode", "prefill")),
            *(f"{peer[what] / each[what]:.2f}" for what in ("decode", "prefill")),
        ]
        for name, each in found.items()
    ]
    heads = ["", "a token", f"prefill of {options.prompt}", "speed of decoding", "of prefill"]
    text = f"{table(heads, rows)}\n\nSpeeds: transformers is 1. Greedy texts equal: {alike}."
    text = text.replace("transformers", f"transformers {version('transformers')}", 1)
    data = {
        "threads": options.threads,
        "cpu_time": options.cpu_time,
        "prompt": options.prompt,
        "found": found,
        "alike": alike,
    }
    clock = "CPU time" if options.cpu_time else "time"
    threads = "one thread" if options.threads == 1 else f"{options.threads} threads"
    title = f"The engine on a CPU, tiny model, float32, {threads}, batch 1, {clock}"
    publish("engine_cpu", title, text, data, save=options.save)
    return 0 if alike else 1


if __name__ == "__main__":
    sys.exit(main())
