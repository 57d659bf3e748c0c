"""Counts the greedy texts that speculation changes: there must be none.

Texts are drawn at random (code that was held out, repeated pieces, noise), and so are the settings:
speculator, drafts, block size, batch, chunks, a cache so small that requests are preempted. It is
done in float32: there a difference of rounding between a batch that verifies drafts and one that
decodes changes a token only if two are equal to seven digits; in bfloat16 ties are common, and what
they show is no error. A text that differs is shown with how far apart the two tokens were.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path
from typing import Any

import torch
from results_file import parser, publish, table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from speculation_prompts import generate, make_core, prompts

from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.config import CUDAGraphMode
from sample_engine.engine_core import EngineCore

GROUP = 25  # texts that share settings


def draw_texts(chance: random.Random, held_out: list[list[int]]) -> list[list[int]]:
    """Texts of one group."""
    texts = []
    for _ in range(GROUP):
        length = chance.choice((1, 2, 5, 16, 17, 33, 60))
        start = chance.randrange(60)
        piece = chance.choice(held_out)[start : start + length]
        kind = chance.random()
        if kind < 0.25:
            piece = chance.choices(range(256), k=length)
        elif kind < 0.5:
            piece = (piece[:7] * 10)[:length]
        texts.append(piece)
    return texts


def draw_settings(chance: random.Random, backend: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A speculator's settings and an engine's."""
    drafts = chance.choice((1, 2, 3, 5, 7))
    speculative: dict[str, Any] = {
        "method": chance.choice(("ngram", "eagle")),
        "num_speculative_tokens": drafts,
        "rejection_sample_method": chance.choice(("probabilistic", "strict")),
    }
    if speculative["method"] == "ngram":
        speculative["prompt_lookup_min"] = chance.choice((1, 2, 3))
    tight = chance.random() < 0.4
    block_size = chance.choice((4, 16)) if backend == "reference" else 16
    settings = {
        "block_size": block_size,
        "num_blocks": chance.randint(8, 10) * 16 // block_size if tight else 4000,
        "max_num_seqs": chance.choice((1, 4, GROUP)),
        "max_num_batched_tokens": chance.choice((drafts + 1, 20, 64, 2048)),
        "enable_prefix_caching": chance.random() < 0.5,
        "attention_backend": backend,
    }
    return speculative, settings


def run_group(
    plain: EngineCore,
    chance: random.Random,
    held_out: list[list[int]],
    options: argparse.Namespace,
) -> tuple[int, dict[str, Any], list[str]]:
    """How many texts differ, what was done, and the differences in words."""
    texts = draw_texts(chance, held_out)
    params = [SamplingParams(max_tokens=chance.randint(1, 48)) for _ in texts]
    speculative, settings = draw_settings(chance, options.backend)
    speculative["step_graphs"] = options.step_graphs
    expected = generate(plain, texts, params)
    settings["cudagraph_mode"] = CUDAGraphMode(options.cudagraph_mode)
    core = make_core(speculative, options.device, dtype="float32", **settings)
    found = generate(core, texts, params)
    wrong = [
        f"text {name} with {speculative}, {settings}: {_first(expected.tokens[name], tokens)}"
        f" after {texts[int(name)]}"
        for name, tokens in found.tokens.items()
        if tokens != expected.tokens[name]
    ]
    metrics = core.metrics()
    core.shutdown()
    return len(wrong), {**metrics, "method": speculative["method"]}, wrong


def _first(expected: list[int], found: list[int]) -> str:
    pairs = zip([*expected, -1], [*found, -1], strict=False)
    place = next(index for index, (one, other) in enumerate(pairs) if one != other)
    return f"{expected[place : place + 1]} became {found[place : place + 1]} at token {place}"


def main() -> None:
    """Generate, compare, print; exit code 1 if any text differs."""
    made = parser("Greedy texts with and without speculation.", rounds=1000)
    made.add_argument("--device", default="cpu", help="cpu or cuda; default cpu")
    made.add_argument("--backend", default=None, help="reference on a CPU, triton on a GPU")
    made.add_argument("--seed", type=int, default=1, help="default 1")
    made.add_argument("--cudagraph-mode", default="NONE", help="with speculation; default NONE")
    made.add_argument(
        "--step-graphs", action="store_true", help="verification and drafts as graphs"
    )
    options = made.parse_args()
    options.backend = options.backend or ("reference" if options.device == "cpu" else "triton")
    torch.set_num_threads(1)
    chance = random.Random(options.seed)
    held_out = prompts(100, 120, options.seed)
    plain = make_core(None, options.device, dtype="float32", attention_backend=options.backend)
    differ, done, counts = 0, 0, {"ngram": [0, 0, 0], "eagle": [0, 0, 0]}
    while done < options.rounds:
        wrong, metrics, words = run_group(plain, chance, held_out, options)
        differ, done = differ + wrong, done + GROUP
        numbers = counts[metrics["method"]]
        numbers[0] += GROUP
        numbers[1] += sum(metrics["accepted_per_position"])
        numbers[2] += metrics["preemptions"]
        print("\n".join(words), end="\n" if words else "", file=sys.stderr)
    rows = [[name, *map(str, numbers)] for name, numbers in counts.items()]
    rows.append(
        ["all", *(str(sum(each[column] for each in counts.values())) for column in range(3))]
    )
    publish(
        "speculation_identity",
        "Greedy texts that speculation changes",
        table(["speculator", "texts", "drafts accepted", "preemptions"], rows)
        + f"\n\n{differ} of {done} texts differ.",
        {
            "settings": {
                "device": options.device,
                "backend": options.backend,
                "cudagraph_mode": options.cudagraph_mode,
                "step_graphs": options.step_graphs,
                "seed": options.seed,
            },
            "texts": done,
            "differ": differ,
        },
        save=options.save,
    )
    sys.exit(int(differ > 0))


if __name__ == "__main__":
    main()
