"""What ``bench_all.py`` runs in turns, and which figures of each part go into its record.

Every figure is a ratio to a peer, a baseline or the best that is possible, measured in one run:
less is better, and what is left of the machine in it is little. Sizes are given here, so that two
records are of the same work. What takes long is in ``long_parts.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Data = Mapping[str, Any]
XDIST = "pytest-xdist"
Figures = Callable[[Data], dict[str, float]]
LEAST_SECONDS = 1800.0
ROUNDS = 3
"""How many times parts in turns run, if nothing else is asked for."""


@dataclass(frozen=True)
class Part:
    """A benchmark of the record.

    Attributes:
        script: its file, or the name of a module that is run with ``-m``.
        options: its arguments.
        figures: reads the ratios from its last line of JSON.
        minutes: about how long one run takes.
        peers: whether it runs with the interpreter that has pytest-forked and its pytest.
        needs: modules without which it cannot run.
        setup: the command that installs them, where the environment does not have them.
        gpus: how many GPUs it cannot run without.
        fetches: whether it fetches packages of others.
        topic: what the name of its own record begins with; "" for a part in turns, whose figures
            are in the record of all.
        counts: whether its figures are of counts: there is no spread, and none may get worse.
        alone: why nothing may run beside it where long parts run side by side; "" where it may.

    """

    script: str
    options: Sequence[str]
    figures: Figures
    minutes: float = 1.0
    peers: bool = False
    needs: Sequence[str] = ()
    setup: str = ""
    gpus: int = 0
    fetches: bool = False
    topic: str = ""
    counts: bool = False
    alone: str = ""

    @property
    def long(self) -> bool:
        """Whether it runs only where it is asked for, once, and keeps a record of its own."""
        return bool(self.topic)

    def runs(self, rounds: int) -> int:
        """Return how many times it runs where parts in turns run so many times."""
        return 1 if self.long else rounds

    @property
    def wanted(self) -> list[str]:
        """Return in words what it needs."""
        found = [*self.needs, *(["the other plugins"] if self.peers else [])]
        found += ["packages from an index"] if self.fetches else []
        found += [f"{self.gpus} GPU{'s' * (self.gpus > 1)}"] if self.gpus else []
        return found + ([f"nothing beside it ({self.alone})"] if self.alone else [])

    @property
    def command(self) -> list[str]:
        """Return what comes after ``python``."""
        start = [self.script] if self.script.endswith(".py") else ["-m", self.script]
        return [*start, *self.options]

    @property
    def seconds(self) -> float:
        """Return after how many seconds a run is ended."""
        return max(LEAST_SECONDS, 4 * 60 * self.minutes)


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
        "benchmarks/bench_import.py",
        ["--rounds", "10"],
        _imported,
        minutes=0.2,
    ),
    "overhead": Part(
        "benchmarks/bench_overhead.py",
        ["--rounds", "5"],
        lambda data: {"checked session, CPU, to no option": data["ratio"]},
        minutes=0.3,
    ),
    "watched": Part(
        "benchmarks/bench_watched_calls.py",
        ["--rounds", "7", "--calls", "2000"],
        lambda data: {
            f"{call}, watched, to unwatched": ratio
            for call, ratio in data["ratios"].items()
            if not call.endswith("not watched")
        },
        minutes=0.1,
    ),
    "run": Part(
        "benchmarks/bench_run.py",
        ["--rounds", "5"],
        lambda data: {
            f"{row['program']}, under `run`, to alone": 1 + row["work_percent"] / 100
            for row in data["rows"]
        },
        minutes=0.2,
    ),
    "audit": Part(
        "benchmarks/bench_imports.py",
        ["--modules", "150", "--fresh", "4", "--jobs", "2"],
        _audited,
        minutes=0.3,
    ),
    "graph": Part(
        "benchmarks/bench_software_graph.py",
        ["--rounds", "3"],
        lambda data: {
            f"software graph, {name}, capture and replay, to eager": each["ratio"]
            for name, each in data["outcomes"].items()
        },
        minutes=0.1,
    ),
    "captures": Part(
        "benchmarks/bench_captures.py",
        ["--rounds", "1", "--group", "graphs of the engine"],
        lambda data: {
            f"{row['group']}, --cuda-fork-captures, CPU, to off": row["ratio"]
            for row in data["rows"]
            if row["how"] == "check"
        },
        minutes=0.4,
    ),
    "files": Part(
        "benchmarks/bench_file_worker.py",
        ["--rounds", "1"],
        lambda data: {
            f"{data['files']} files that import torch, by worker, to Python": data["ratio"]
        },
        minutes=0.4,
    ),
    "isolation": Part(
        "benchmarks/bench_isolation_cpu.py",
        ["--tests", "200", "--rounds", "1"],
        _isolated,
        peers=True,
        minutes=0.2,
    ),
    "engine": Part(
        "benchmarks/bench_engine_cpu.py",
        [*("--threads", "1", "--cpu-time", "--best"), *("--rounds", "2", "--texts", "4")],
        _engine,
        needs=("transformers", "msgspec"),
        minutes=0.8,
    ),
    "packing": Part("benchmarks/bench_packing.py", [], _packed, minutes=2.5),
}
"""The parts in turns that need no GPU, by name."""


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
    "pair": Part(
        "benchmarks/bench_capture_pair.py", ["--rounds", "20"], _pair, gpus=1, minutes=0.2
    ),
    "decode": Part(
        "benchmarks/bench_engine.py",
        ["--prompt", "128", "--batch", "1", "--settings", *_DECODE],
        _decode,
        gpus=1,
        minutes=0.2,
    ),
    "blocks": Part(
        "benchmarks/bench_kv_blocks.py",
        [],
        lambda data: {
            f"KV blocks {name}, to a copy": 1 / each["part"] for name, each in data["moves"].items()
        },
        gpus=1,
        minutes=0.2,
    ),
    "speculation": Part(
        "benchmarks/bench_speculation.py",
        ["--device", "cuda", "--only", "speed", "--modes", "FULL_AND_PIECEWISE"],
        lambda data: {
            f"time of a token, batch {name}, to none": 1 / each["gain"]
            for name, each in data["speed"].items()
            if " none " not in name
        },
        gpus=1,
        minutes=0.5,
    ),
}
"""The parts in turns that need a GPU, by name."""
