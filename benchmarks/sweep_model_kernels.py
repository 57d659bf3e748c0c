"""Searches for fast configurations of the model's kernels; times the step they make.

It writes no table of the engine: the lines it prints are to be put into
``sample_engine/model/kernels/tuning.py`` by hand. Kernels are compiled on all cores first, without
the GPU. Each linear layer runs over many copies of its weight, more than the L2 cache holds.

    python benchmarks/sweep_model_kernels.py [--seconds 60] [--ahead 0,2048]

With ``--ranks 2`` it searches for the weights that one of two ranks holds, and times no step.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from arguments import above_zero, at_least, needs_gpu

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from attention_cases import Timer, copy_bandwidth, relative_error
from compile_ahead import start_compiling
from model_step import Table, graph_of, step_of, through_backend, tuned, untouched, weight_bytes

from sample_engine.model.kernels.linear import LinearConfig as Config
from sample_engine.model.kernels.linear import linear

SHAPES = {
    "qkv": (6144, 4096),
    "o": (4096, 4096),
    "gate_up": (28672, 4096),
    "down": (4096, 14336),
    "lm_head": (128256, 4096),
}
TOKENS = (1, 8)
# Which dimension of a weight ranks share: 0, the rows, or 1, the columns.
CUT = {"qkv": 0, "o": 1, "gate_up": 0, "down": 1, "lm_head": 0}
ANY = [
    Config(16, 256, 4, 4),
    Config(16, 512, 4, 4),
    Config(16, 256, 2, 6),
    Config(32, 256, 4, 4),
    Config(32, 128, 4, 6),
    Config(32, 512, 4, 3),
    Config(64, 128, 4, 4),
]
NARROW = [
    Config(64, 128, 4, 5, split=4),
    Config(64, 256, 4, 3, split=2),
    Config(64, 128, 4, 5, split=2),
    Config(32, 256, 4, 3, split=2),
    Config(16, 128, 2, 8),
]
WIDE = [Config(64, 64, 4, 6), Config(64, 256, 4, 3), Config(128, 64, 4, 5)]
_WIDE_N = 16384
_MOST_ERROR = 1e-2  # of a norm, in bfloat16
_COPIES = 3 << 29  # bytes of weights that a graph goes through
_LAUNCHES = 20
_COMPILE_SECONDS = 30
_STEP_SECONDS = 15  # that are left for the whole steps


def shape_of(name: str, ranks: int) -> tuple[int, int]:
    """The weight of a layer as each of so many ranks holds it."""
    size_n, size_k = SHAPES[name]
    return (size_n // ranks, size_k) if CUT[name] == 0 else (size_n, size_k // ranks)


def configs_of(size_n: int) -> list[Config]:
    """What is tried for a weight with so many rows."""
    return ANY + (WIDE if size_n >= _WIDE_N else NARROW)


# Compiling ahead


def _compile(index: int) -> None:
    """Compile a configuration for this kind of GPU, without touching one."""
    config, overlap = [(each, on) for each in ANY + NARROW + WIDE for on in (False, True)][index]
    x = torch.empty(4, 4096, dtype=torch.bfloat16)
    weight = torch.empty(4096, 4096, dtype=torch.bfloat16)
    try:
        for residual in (None, x):
            linear(x, weight, residual, config=config, overlap=overlap)
    except Exception:  # the sweep itself will meet it and say so
        return


def _start() -> None:
    torch.set_num_threads(1)
    start_compiling()


# Linear layers, one by one


def microseconds(call: Callable[[int], object], launches: int = _LAUNCHES) -> float:
    """The time of one of many calls in a graph, of which each gets its number."""

    def work() -> None:
        for number in range(launches):
            call(number)

    call(0)
    return replayed(graph_of(work)) / launches


def replayed(graph: torch.cuda.CUDAGraph, rounds: int = 7) -> float:
    """The median time of a replay in microseconds."""
    pairs = []
    for _ in range(rounds + 1):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        stop.record()
        pairs.append((start, stop))
    torch.cuda.synchronize()
    return 1000 * float(statistics.median(start.elapsed_time(stop) for start, stop in pairs[1:]))


class Layer:
    """Copies of a weight, and tokens for it."""

    def __init__(self, name: str, ranks: int) -> None:
        self.name, (self.size_n, self.size_k) = name, shape_of(name, ranks)
        each = 2 * self.size_n * self.size_k
        self.bytes = each
        copies = max(2, min(_LAUNCHES, _COPIES // each))
        shape = (copies, self.size_n, self.size_k)
        self.weights = torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_()
        self.tokens = torch.randn(max(TOKENS), self.size_k, device="cuda").bfloat16()

    def gigabytes(self, us: float) -> float:
        """What is read in a second."""
        return self.bytes / us / 1000

    def timed(self, num_tokens: int, config: Config | None, overlap: bool) -> float | str:
        """Microseconds of a call, or why there are none; without a configuration: cuBLAS."""
        x, weights = self.tokens[:num_tokens], self.weights

        def call(number: int) -> torch.Tensor:
            weight = weights[number % len(weights)]
            if config is None:
                return torch.nn.functional.linear(x, weight)
            return linear(x, weight, config=config, overlap=overlap)

        try:
            expected = x.float() @ weights[0].float().T
            error = relative_error(call(0), expected)
            if not error < _MOST_ERROR:
                return f"wrong by {error:.2g}"
            return microseconds(call)
        except Exception as error:
            return f"{type(error).__name__}: {str(error)[:60]}"


def sweep(name: str, ranks: int, until: float) -> tuple[Config, Config]:
    """Try a layer; the best configurations without and with overlap, over few tokens."""
    layer = Layer(name, ranks)
    for num_tokens in TOKENS:
        us = layer.timed(num_tokens, None, False)
        assert isinstance(us, float), us
        print(
            f"{name} T={num_tokens} cuBLAS {us:.2f} us {layer.gigabytes(us):.0f} GB/s", flush=True
        )
    best: dict[bool, tuple[float, Config]] = {}
    for overlap in (True, False):
        for config in configs_of(layer.size_n):
            if time.monotonic() > until and best:
                break
            found = [layer.timed(num_tokens, config, overlap) for num_tokens in TOKENS]
            report = {"layer": name, "config": str(config), "overlap": overlap, "us": found}
            times = [us for us in found if isinstance(us, float)]
            if len(times) == 2:
                report["GB/s"] = [round(layer.gigabytes(us)) for us in times]
                report["us"] = [round(us, 2) for us in times]
                if overlap not in best or sum(times) < best[overlap][0]:
                    best[overlap] = (sum(times), config)
            print(json.dumps(report).replace("LinearConfig", ""), flush=True)
    usual = configs_of(layer.size_n)[0]
    return best.get(False, (0.0, usual))[1], best.get(True, (0.0, usual))[1]


def show(title: str, table: Table) -> None:
    """Print lines to paste."""
    print(f"\n# {title}")
    for shape, config in table.items():
        values = {name: value for name, value in vars(config).items() if value}
        if values.get("split") == 1:
            del values["split"]
        inner = ", ".join(f"{name}={value}" for name, value in values.items())
        print(f"        {shape}: LinearConfig({inner}),")
    print(flush=True)


# The other kernels, and the whole step


def small_kernels() -> None:
    """Print what the small kernels cost in a graph, in microseconds."""
    from sample_engine.model.kernels import reference, rms_norm, rotate, silu_and_mul

    x, weight = torch.randn(2, 1, 4096, device="cuda").bfloat16().unbind()
    qkv = torch.randn(1, 48, 128, device="cuda").bfloat16()
    q, k = qkv[:, :32], qkv[:, 32:40]
    gated = torch.randn(1, 28672, device="cuda").bfloat16()
    positions = torch.tensor([1000], device="cuda")
    cos, sin = reference.rope_angles(positions, 128, 5e5)
    calls: list[tuple[Callable[..., object], tuple[Any, ...]]] = [
        (rms_norm.rms_norm, (x, weight[0], 1e-5)),
        (rms_norm.add_rms_norm, (x, x, weight[0], 1e-5)),
        (rotate.rotate, (q, k, cos, sin)),
        (rotate.rope_angles, (positions, 128, 5e5)),
        (silu_and_mul.silu_and_mul, (gated,)),
    ]
    for overlap in (False, True):
        times = {
            kernel.__name__: round(microseconds(repeated(kernel, *args, overlap=overlap)), 2)
            for kernel, args in calls
        }
        print(f"small kernels, us, overlap={overlap}: {times}", flush=True)


def repeated(call: Callable[..., object], *args: Any, **kwargs: Any) -> Callable[[int], object]:
    """A call that is the same each time."""
    return lambda _: call(*args, **kwargs)


Way = tuple[str, Table | None, bool]


def ways_of(plain: Table, overlapped: Table, aheads: list[int]) -> list[Way]:
    """How linear layers are computed in a step, and whether kernels overlap."""
    ways: list[Way] = [
        ("cuBLAS", None, False),
        ("cuBLAS, overlap", None, True),
        ("ours", plain, False),
        ("ours, overlap", plain, True),
        ("ours for overlap, overlap", overlapped, True),
    ]
    for ahead in aheads:
        table = {at: dataclasses.replace(each, ahead=ahead) for at, each in overlapped.items()}
        ways.append((f"ours for overlap, overlap, ahead={ahead}", table, True))
    return ways


def whole_steps(ways: list[Way], bandwidth: float) -> None:
    """Print what a decode step costs as one graph, with cuBLAS and with our linear layers."""
    from sample_engine.model.loading import load_model

    model = load_model("llama-3-8b", load_format="dummy", device="cuda", dtype=torch.bfloat16)
    limit = weight_bytes(model) / bandwidth * 1000
    print(f"weights {weight_bytes(model) / 1e9:.2f} GB, limit {limit:.3f} ms", flush=True)
    for num_tokens in (1, 4):
        attends = {
            "no attention": untouched,
            "triton, 1024 long": through_backend(num_tokens, 1024),
        }
        for attention, attend in attends.items():
            first: torch.Tensor | None = None
            for title, table, overlap in ways:
                with torch.inference_mode(), tuned(table, overlap=overlap):
                    step = step_of(model, num_tokens, attend)
                    graph = graph_of(step)
                    ms = replayed(graph) / 1000
                    logits = step().clone()
                first = logits if first is None else first
                said = (
                    f"T={num_tokens} {attention}: {title}: {ms:.3f} ms, {limit / ms:.3f} of limit"
                )
                print(f"{said}, differs by {relative_error(logits, first.float()):.2g}", flush=True)
                del graph


def main() -> None:
    """Compile, sweep, print."""
    options = argparse.ArgumentParser(description="Search for fast kernels of the model.")
    options.add_argument("--seconds", type=above_zero, default=60)
    options.add_argument(
        "--ranks", type=at_least(1), default=1, help="that share the weights; default 1"
    )
    options.add_argument("--shapes", default=",".join(SHAPES))
    options.add_argument(
        "--ahead", default="", help="columns that are fetched early, such as 0,2048"
    )
    chosen = options.parse_args()
    needs_gpu(options)
    start = time.monotonic()
    pool = multiprocessing.get_context("spawn").Pool(min(16, os.cpu_count() or 1), _start)
    done = pool.map_async(_compile, range(2 * len(ANY + NARROW + WIDE)), chunksize=1)
    bandwidth = copy_bandwidth(Timer())
    done.wait(_COMPILE_SECONDS)
    pool.terminate()
    print(f"copy {bandwidth / 1e12:.2f} TB/s; compiled after {time.monotonic() - start:.0f} s")
    small_kernels()
    names = chosen.shapes.split(",")
    until = start + chosen.seconds - (_STEP_SECONDS if chosen.ranks == 1 else 0)
    plain, overlapped = {}, {}
    for number, name in enumerate(names):
        share = (until - time.monotonic()) / (len(names) - number)
        found = sweep(name, chosen.ranks, time.monotonic() + share)
        shape = shape_of(name, chosen.ranks)
        plain[shape], overlapped[shape] = found
        torch.cuda.empty_cache()
    show("best without overlap", plain)
    show("best with overlap", overlapped)
    aheads = [int(ahead) for ahead in chosen.ahead.split(",") if ahead]
    if chosen.ranks == 1:
        whole_steps(ways_of(plain, overlapped, aheads), bandwidth)
    print(f"took {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
