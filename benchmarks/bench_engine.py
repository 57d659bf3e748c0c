"""Measures a decode step through the whole engine: front end, core, model, sampling.

The engine is used by its public names alone. The time of a step is the slope between a short and a
long generation, so that the prompt's pass cancels out. The bandwidth limit of a step is the time in
which the device can read what a step has to read, all weights and the cache of the texts, at the
speed at which it copies; the copy is measured in the same run. Each row is also told as a part of
the first one's time of a step, of the same batch: so a setting stands beside its absence.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from arguments import at_least, needs_gpu
from results_file import parser, publish, table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from attention_cases import Timer, copy_bandwidth

from sample_engine import LLM, SamplingParams
from sample_engine.model.loading import read_config

SHORT, LONG = 16, 144  # tokens generated in the two runs


def bytes_of_step(model: str, element: int, batch: int, length: float) -> float:
    """Return what a decode step reads: each weight once, and the keys and values of all texts."""
    shape = read_config(model)
    hidden, heads = shape.hidden_size, shape.num_attention_heads
    per_head = shape.head_dim
    attention = hidden * per_head * (2 * heads + 2 * shape.num_key_value_heads)
    mlp = 3 * hidden * shape.intermediate_size
    weights = shape.num_hidden_layers * (attention + mlp) + hidden * shape.vocab_size
    cache = batch * length * shape.num_hidden_layers * 2 * shape.num_key_value_heads * per_head
    return (weights + cache) * element


def measure_steps(
    llm: LLM, prompt: str, batch: int, rounds: int
) -> tuple[list[float], float, float]:
    """Return the seconds of a decode step in each round, its tokens, and the drafts it verified.

    Seconds and tokens are those of all ``batch`` requests, drafts those of one.
    """

    def run(tokens: int) -> tuple[float, int, int]:
        params = SamplingParams(max_tokens=tokens, ignore_eos=True)
        before = llm.metrics()
        started = time.perf_counter()
        llm.generate([prompt] * batch, params, use_tqdm=False)
        seconds, after = time.perf_counter() - started, llm.metrics()
        drafted = sum(after["drafted_per_position"]) - sum(before["drafted_per_position"])
        return seconds, after["steps"] - before["steps"], drafted

    run(LONG)
    slopes, lengths, drafts = [], [], []
    for _ in range(rounds):
        (short, few, _), (long, many, drafted) = run(SHORT), run(LONG)
        slopes.append((long - short) / (many - few))
        lengths.append((LONG - SHORT) * batch / (many - few))
        drafts.append(drafted / many / batch)
    return slopes, statistics.median(lengths), statistics.median(drafts)


def measure(options: argparse.Namespace, settings: dict[str, Any], batch: int) -> dict[str, Any]:
    """Return the figures of one engine at one batch size, in milliseconds and tokens a second."""
    prompt = "x" * options.prompt
    longest = options.prompt + LONG + 8
    with LLM(
        model=options.model,
        load_format=options.load_format,
        device="cuda",
        dtype="bfloat16",
        max_model_len=longest,
        max_num_seqs=max(batch, 1),
        max_num_batched_tokens=max(2048, batch),
        num_blocks=batch * (longest // 16 + 2) + 2,
        enable_prefix_caching=False,
        **settings,
    ) as llm:
        steps, tokens, drafts = measure_steps(llm, prompt, batch, options.rounds)
        ran = llm.info()["backend"]
    return {
        "backend": ran,
        "ms": statistics.median(steps) * 1e3,
        "least_ms": min(steps) * 1e3,
        "most_ms": max(steps) * 1e3,
        "tokens_per_s": tokens / statistics.median(steps),
        "drafts_per_step": drafts,
    }


def cells(found: dict[str, Any], speed: float) -> list[str]:
    """Return what the table says of one engine; ``speed`` is in bytes a second."""
    return [
        found["backend"].split(",")[0][:40],
        f"{found['ms']:.3f}",
        f"{found['of_first']:.3f}",
        f"{found['drafts_per_step']:.2f}",
        f"{found['tokens_per_s']:.0f}",
        f"{speed / 1e12:.2f} TB/s",
        f"{found['of_copy']:.3f}",
        f"{found['least_ms']:.3f}",
        f"{found['most_ms']:.3f}",
    ]


def main() -> None:
    """Measure, print, and keep the results if that is asked for."""
    made = parser("Decode through the whole engine, on a GPU.", rounds=3, topic="engine_decode")
    made.add_argument("--model", default="llama-3-8b")
    made.add_argument("--load-format", default="dummy")
    made.add_argument("--prompt", type=at_least(1), default=512, help="tokens of a prompt")
    made.add_argument("--batch", type=at_least(1), nargs="+", default=[1, 32])
    made.add_argument(
        "--settings",
        nargs="+",
        default=[
            '{"attention_backend": "triton", "worker_method": "inproc"}',
            '{"attention_backend": "flash", "worker_method": "inproc"}',
            '{"attention_backend": "lazy_plan", "worker_method": "inproc"}',
            '{"attention_backend": "triton", "worker_method": "spawn"}',
        ],
        help="JSON objects of engine settings, a row each",
    )
    options = made.parse_args()
    needs_gpu(made)
    copied = copy_bandwidth(Timer())
    rows = [["copy", "", "", "", "", "", f"{copied / 1e12:.2f} TB/s", "1.00", "", ""]]
    figures: list[dict[str, Any]] = []
    for batch in options.batch:
        read = bytes_of_step(options.model, 2, batch, options.prompt + (SHORT + LONG) / 2)
        for text in options.settings:
            try:
                found = measure(options, json.loads(text), batch)
            except Exception as error:  # a backend that is not there: the others go on
                print(f"left out: {text} at batch {batch}: {type(error).__name__}: {error}")
                continue
            speed = read / (found["ms"] / 1e3)
            first = next((each["ms"] for each in figures if each["batch"] == batch), found["ms"])
            found |= {"of_first": found["ms"] / first, "of_copy": speed / copied}
            figures.append({"settings": json.loads(text), "batch": batch, **found})
            rows.append([f"{batch} x {text}", *cells(found, speed)])
            print(rows[-1], flush=True)
    header = ["engine", "backend", "ms a step", "of the first", "drafts a step", "tokens/s"]
    header += ["weights and cache read", "of copy", "least ms", "most ms"]
    publish(
        options.topic,
        f"Decode through the engine: {options.model}",
        table(header, rows),
        {"model": options.model, "prompt": options.prompt, "copy": copied, "rows": figures},
        save=options.save,
    )


if __name__ == "__main__":
    main()
