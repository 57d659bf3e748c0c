"""What ``bench_all.py`` runs, and which figures of each benchmark go into its record.

Every figure is a ratio to a peer, a baseline or the best that is possible, measured in one run:
less is better, and what is left of the machine in it is little. Sizes are given here, so that two
records are of the same work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Data = Mapping[str, Any]
XDIST = "pytest-xdist"
Figures = Callable[[Data], dict[str, float]]


@dataclass(frozen=True)
class Part:
    """A benchmark of the record.

    Attributes:
        script: its file without the suffix.
        options: its arguments.
        figures: reads the ratios from its last line of JSON.
        once: whether it is too long to be repeated; it has no spread then.
        peers: whether it runs with the interpreter that has pytest-forked and its pytest.
        needs: modules without which it cannot run.

    """

    script: str
    options: Sequence[str]
    figures: Figures
    once: bool = False
    peers: bool = False
    needs: Sequence[str] = ()

    @property
    def command(self) -> list[str]:
        """Return what comes after ``python``."""
        return [f"benchmarks/{self.script}.py", *self.options]


def _imported(data: Data) -> dict[str, float]:
    least = data["min_cpu_ms"]
    return {"import of the plugin, CPU, to pytest-xdist's": least["pytest-cudafork"] / least[XDIST]}


def _isolated(data: Data) -> dict[str, float]:
    cpu, wall = data["columns"].index("CPU"), data["columns"].index("wall")
    return {
        f"session isolated by {method}, {word}, to pytest-forked": values[column]
        for method, values in data["figures"].items()
        if method in ("fork", "forkserver")
        for word, column in (("CPU", cpu), ("wall", wall))
    }


def _audited(data: Data) -> dict[str, float]:
    return {
        "audit of torch, to fresh interpreters in a row": 1 / data["ratio_in_a_row"],
        "audit of torch, to fresh interpreters at once": 1 / data["ratio_at_once"],
    }


def _engine(data: Data) -> dict[str, float]:
    peer, ours = data["found"]["transformers"], data["found"]["sdpa"]
    gains = {
        f"time of a token with {name}, to none": 1 / each["gain"]
        for name, each in data["speculation"].items()
        if name != "none"
    }
    return {
        "engine, decode step, to transformers": ours["decode"] / peer["decode"],
        "engine, prefill, to transformers": ours["prefill"] / peer["prefill"],
        **gains,
    }


def _packed(data: Data) -> dict[str, float]:
    return {
        f"{name.partition('_')[0]} GPUs packed, to the best packing found": each[
            "ratio_to_best_found"
        ]
        for name, each in data.items()
        if name.endswith("_gpus")
    }


CPU = {
    "import": Part(
        "bench_import",
        ["--rounds", "10"],
        _imported,
    ),
    "overhead": Part(
        "bench_overhead",
        ["--rounds", "5"],
        lambda data: {"checked session, CPU, to no option": data["ratio"]},
    ),
    "watched": Part(
        "bench_watched_calls",
        ["--rounds", "7", "--calls", "2000"],
        lambda data: {
            f"{call}, watched, to unwatched": ratio
            for call, ratio in data["ratios"].items()
            if not call.endswith("not watched")
        },
    ),
    "run": Part(
        "bench_run",
        ["--rounds", "5"],
        lambda data: {
            f"{row['program']}, under `run`, to alone": 1 + row["work_percent"] / 100
            for row in data["rows"]
        },
    ),
    "audit": Part("bench_imports", ["--modules", "150", "--fresh", "4", "--jobs", "2"], _audited),
    "graph": Part(
        "bench_software_graph",
        ["--rounds", "3"],
        lambda data: {
            f"software graph, {name}, capture and replay, to eager": each["ratio"]
            for name, each in data["outcomes"].items()
        },
    ),
    "captures": Part(
        "bench_captures",
        ["--rounds", "1", "--group", "graphs of the engine"],
        lambda data: {
            f"{row['group']}, --cuda-fork-captures, CPU, to off": row["ratio"]
            for row in data["rows"]
            if row["how"] == "check"
        },
    ),
    "isolation": Part(
        "bench_isolation_cpu", ["--tests", "200", "--rounds", "1"], _isolated, peers=True
    ),
    "engine": Part(
        "bench_engine_cpu",
        [*("--threads", "1", "--cpu-time", "--best"), *("--rounds", "2", "--texts", "4")],
        _engine,
        once=True,
        needs=("transformers", "msgspec"),
    ),
    "packing": Part("bench_packing", [], _packed, once=True),
}
"""The parts that need no GPU, by name."""


def _pair(data: Data) -> dict[str, float]:
    return {
        f"capture_pair, {layers} layers, to a plain warm-up and capture": times["pair"]
        / (times["plain"] + times["capture"])
        for layers, times in data["milliseconds"].items()
    }


def _decode(data: Data) -> dict[str, float]:
    found = {}
    for row in data["rows"]:
        how = row["settings"]["worker_method"]
        found[f"decode step, {how}, batch {row['batch']}, to a copy"] = 1 / row["of_copy"]
    return found


_DECODE = (
    '{"attention_backend": "triton", "worker_method": "inproc", "cudagraph_mode": "FULL"}',
    '{"attention_backend": "triton", "worker_method": "spawn", "cudagraph_mode": "FULL"}',
)

GPU = {
    "pair": Part("bench_capture_pair", ["--rounds", "20"], _pair),
    "decode": Part(
        "bench_engine",
        ["--prompt", "128", "--batch", "1", "--settings", *_DECODE],
        _decode,
    ),
    "blocks": Part(
        "bench_kv_blocks",
        [],
        lambda data: {
            f"KV blocks {name}, to a copy": 1 / each["part"] for name, each in data["moves"].items()
        },
    ),
    "speculation": Part(
        "bench_speculation",
        ["--device", "cuda", "--only", "speed", "--modes", "FULL_AND_PIECEWISE"],
        lambda data: {
            f"time of a token, batch {name}, to none": 1 / each["gain"]
            for name, each in data["speed"].items()
            if " none " not in name
        },
        once=True,
    ),
}
"""The parts that need one GPU, by name."""
