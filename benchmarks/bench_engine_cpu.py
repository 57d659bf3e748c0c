"""Measures the engine on a CPU against ``transformers.generate``, on the tiny model in float32.

Decoding: seconds a token of one text, from its first token on. Prefill: seconds until the first
token of a prompt. Speculation: the same of the committed prompts (``speculation_prompts``), with
the backend ``sdpa``, against none. All take turns in one run, each round in another order; of the
rounds the medians are compared, or with ``--best`` the best of each step. Texts must be equal.

    python benchmarks/bench_engine_cpu.py --save
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from arguments import at_least
from results_file import parser, publish, table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from speculation_prompts import METHODS, NONE, make_core, prompts

from sample_engine import LLM, SamplingParams
from sample_engine.engine_core import EngineCore
from sample_engine.model.config_file import TINY_FOLDER

PROMPT_BYTES = 128  # of a text that is speculated on, as in bench_speculation
SHORT = 64  # bytes of the prompt after which tokens are timed


class Timed(NamedTuple):
    """A text that was completed: its tokens, and the seconds of the prompt and of each step."""

    tokens: list[int]
    prefill: float
    steps: list[float]


Clock = Callable[[], float]
Complete = Callable[[list[int], int, Clock], Timed]


def of_transformers() -> Complete:
    """Greedy completion by transformers."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(TINY_FOLDER, dtype=torch.float32)

    class Marks(transformers.generation.streamers.BaseStreamer):  # type: ignore[misc]
        """Notes when a token comes; the first thing that comes is the prompt."""

        def __init__(self, clock: Clock) -> None:
            self.clock, self.marks = clock, list[float]()

        def put(self, value: Any) -> None:
            self.marks.append(self.clock())

        def end(self) -> None:
            pass

    def complete(prompt: list[int], count: int, clock: Clock) -> Timed:
        ids = torch.tensor([prompt])
        mask, marks = torch.ones_like(ids), Marks(clock)
        settings = {"do_sample": False, "min_new_tokens": count, "pad_token_id": 0}
        began = clock()
        out = model.generate(
            ids, attention_mask=mask, max_new_tokens=count, streamer=marks, **settings
        )
        found: list[int] = out[0, len(prompt) :].tolist()
        return Timed(found, marks.marks[1] - began, _gaps(marks.marks[1:]))

    return complete


def of_engine(llm: LLM) -> Complete:
    """Greedy completion by an engine."""

    def complete(prompt: list[int], count: int, clock: Clock) -> Timed:
        params = SamplingParams(max_tokens=count, ignore_eos=True)
        tokens: list[int] = []
        marks, began = list[float](), clock()
        for output in llm.generate_stream({"prompt_token_ids": prompt}, params):
            tokens += output.token_ids
            marks.append(clock())
        return Timed(tokens, marks[0] - began, _gaps(marks))

    return complete


def of_core(core: EngineCore) -> Complete:
    """The same by the engine's core alone."""

    def complete(prompt: list[int], count: int, clock: Clock) -> Timed:
        core.add_request("text", prompt, SamplingParams(max_tokens=count, ignore_eos=True))
        tokens: list[int] = []
        marks, began = list[float](), clock()
        while core.has_unfinished():
            tokens += [token for output in core.step() for token in output.new_token_ids]
            marks.append(clock())
        return Timed(tokens, marks[0] - began, _gaps(marks))

    return complete


def _gaps(marks: list[float]) -> list[float]:
    return [after - before for before, after in itertools.pairwise(marks)]


def over_rounds(runs: Sequence[Timed], *, best: bool) -> tuple[float, float]:
    """Seconds of the prompt, and of all steps after it.

    The median of the rounds; or with ``best`` of each step its best one: a text has the same steps
    in each round, and on a busy machine few of them are left alone.
    """
    if best:
        each_step = zip(*(run.steps for run in runs), strict=True)
        return min(run.prefill for run in runs), sum(min(times) for times in each_step)
    return (
        statistics.median(run.prefill for run in runs),
        statistics.median(sum(run.steps) for run in runs),
    )


def in_turns(
    ways: Mapping[str, Complete],
    texts: Sequence[list[int]],
    count: int,
    rounds: int,
    clock: Clock,
) -> dict[str, list[list[Timed]]]:
    """All runs of all ways on each text, in another order each time."""
    chance = random.Random(1)
    found: dict[str, list[list[Timed]]] = {name: [[] for _ in texts] for name in ways}
    for complete in ways.values():  # each warms up
        complete(texts[0], 2, clock)
    for _ in range(rounds):
        for index, text in enumerate(texts):
            for name in chance.sample(list(ways), len(ways)):
                found[name][index].append(ways[name](text, count, clock))
    return found


def alike(found: Mapping[str, list[list[Timed]]]) -> bool:
    """Whether all ways made the same of each text."""
    each_text = zip(*found.values(), strict=True)
    return all(len({tuple(run.tokens) for runs in of for run in runs}) == 1 for of in each_text)


def against_transformers(options: argparse.Namespace, clock: Clock) -> tuple[str, Any, bool]:
    """Decoding and prefill of both: as a table, as data, and whether all texts are equal."""
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
    text = list((TINY_FOLDER.parent / "llama.py").read_bytes() * 2)
    decoded = in_turns(ways, [text[:SHORT]], options.tokens, options.rounds, clock)
    filled = in_turns(ways, [text[: options.prompt]], 1, options.rounds, clock)
    for llm in engines.values():
        llm.shutdown()
    times = {
        name: {
            "decode": over_rounds(decoded[name][0], best=options.best)[1]
            / (options.tokens - 1)
            * 1e3,
            "prefill": over_rounds(filled[name][0], best=options.best)[0] * 1e3,
        }
        for name in ways
    }
    peer = times["transformers"]
    rows = [
        [
            name,
            *(f"{each[what]:.2f} ms" for what in ("decode", "prefill")),
            *(f"{peer[what] / each[what]:.2f}" for what in ("decode", "prefill")),
        ]
        for name, each in times.items()
    ]
    heads = ["", "a token", f"prefill of {options.prompt}", "speed of decoding", "of prefill"]
    shown = table(heads, rows).replace("transformers", f"transformers {version('transformers')}", 1)
    return shown, times, alike(decoded) and alike(filled)


def with_speculation(options: argparse.Namespace, clock: Clock) -> tuple[str, Any, bool]:
    """How much faster each method decodes than none does, likewise."""
    settings = {"attention_backend": "sdpa", "max_num_seqs": 1, "enable_prefix_caching": False}
    cores = {name: make_core(each, "cpu", **settings) for name, each in METHODS.items()}
    ways = {name: of_core(core) for name, core in cores.items()}
    texts = prompts(options.texts, PROMPT_BYTES, 1)
    found = in_turns(ways, texts, options.tokens, options.rounds, clock)
    for core in cores.values():
        core.shutdown()
    took = {
        name: sum(over_rounds(runs, best=options.best)[1] for runs in of) * 1e3
        for name, of in found.items()
    }
    count = len(texts) * (options.tokens - 1)
    data = {
        name: {
            "ms_a_token": took[name] / count,
            "tokens_a_step": count / sum(len(runs[0].steps) for runs in of),
            "gain": took[NONE] / took[name],
        }
        for name, of in found.items()
    }
    rows = [
        [
            name,
            f"{each['ms_a_token']:.2f} ms",
            f"{each['tokens_a_step']:.2f}",
            f"{each['gain']:.2f}",
        ]
        for name, each in data.items()
    ]
    return table(["speculation", "a token", "tokens a step", "x none"], rows), data, alike(found)


def main() -> int:
    """Measure, and tell."""
    made = parser("The engine on a CPU against transformers.", rounds=7)
    made.add_argument("--threads", type=at_least(1), default=2)
    made.add_argument(
        "--cpu-time",
        action="store_true",
        help="of this process, in place of the time that passes: with one thread on a busy machine",
    )
    made.add_argument("--best", action="store_true", help="of each step the best of the rounds")
    made.add_argument(
        "--texts", type=at_least(1), default=8, help="that are speculated on; default 8"
    )
    made.add_argument("--tokens", type=at_least(1), default=128, help="of each answer; default 128")
    made.add_argument("--prompt", type=at_least(1), default=2000, help="tokens of the long prompt")
    options = made.parse_args()
    torch.set_num_threads(options.threads)
    clock = time.process_time if options.cpu_time else time.perf_counter
    beside, times, same = against_transformers(options, clock)
    speculation, gains, equal = with_speculation(options, clock)
    text = (
        f"{beside}\n\nSpeeds: transformers is 1. Greedy texts equal: {same}.\n\n{speculation}\n\n"
        f"{options.texts} texts of {options.tokens} tokens, backend sdpa; equal: {equal}."
    )
    data = {
        "threads": options.threads,
        "cpu_time": options.cpu_time,
        "best": options.best,
        "prompt": options.prompt,
        "found": times,
        "speculation": gains,
        "alike": same and equal,
    }
    measured = "CPU time" if options.cpu_time else "time"
    if options.best:
        measured += ", best of each step"
    threads = "one thread" if options.threads == 1 else f"{options.threads} threads"
    title = f"The engine on a CPU, tiny model, float32, {threads}, batch 1, {measured}"
    publish("engine_cpu", title, text, data, save=options.save)
    return 0 if same and equal else 1


if __name__ == "__main__":
    sys.exit(main())
