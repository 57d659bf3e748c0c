"""What ``bench_all.py`` runs only where it is asked for: it takes long, or fetches packages.

Each part is run once and keeps a record of its own; its exit status is its verdict. Figures are of
counts where there are any: all that was tried to what came out right, so that 1 is the best.
"""

from __future__ import annotations

from collections.abc import Callable

from record_parts import Data, Part

_FOLDERS = "build/bench"
"""Where what was fetched is kept, so that a second run needs not fetch it."""


def _share(tried: int, right: int) -> float:
    """Return all that was tried to what came out right; more than all of it if that is none.

    Raises:
        ValueError: nothing was tried.

    """
    if not tried:
        raise ValueError("nothing was tried")
    return tried / right if right else tried + 1.0


def _nothing(data: Data) -> dict[str, float]:
    """Return no figure: the exit status says it all."""
    return {}


def _caught(*methods: str) -> Callable[[Data], dict[str, float]]:
    """Return what reads of these methods how many specimens they tell, and how many repairs."""

    def read(data: Data) -> dict[str, float]:
        found = {}
        for part in ("forks", "graphs"):
            for name, each in data.get(part, {"totals": {}})["totals"].items():
                if name in methods:
                    told = _share(each["specimens"], each["right_line"])
                    found[f"specimens of {part}, to those told by their line: {name}"] = told
                    alarms = 1.0 + each["false_alarms"]
                    found[f"specimens of {part}, 1 and the false alarms: {name}"] = alarms
        return found

    return read


def _kept(data: Data) -> dict[str, float]:
    return {
        f"faults, to those with all promises kept, {way}": _share(data["faults"], of["all five"])
        for way, of in data["totals"].items()
        if way.split()[0] in ("fork", "forkserver", "spawn")
    }


def _released(data: Data) -> dict[str, float]:
    totals = data["totals"]
    return {"pairs of releases, to those told before": _share(totals["ran"], totals["told_before"])}


LONG_CPU = {
    "catch": Part(
        *("benchmarks/catch_rate.py", ["--jobs", "2"], _caught("present", "absent", "checks")),
        minutes=3,
        topic="catch_rate",
        counts=True,
    ),
    "faults": Part(
        *("benchmarks/faults.py", ["--topic", "faults_whole", "--jobs", "4"], _kept),
        minutes=60,
        peers=True,
        topic="faults_whole",
        counts=True,
    ),
    "soak": Part(
        *("benchmarks/soak.py", ["--jobs", "2"], _nothing),
        minutes=120,
        topic="soak",
    ),
    "fuzz": Part(
        *("tests.fuzz.run", ["--seconds", "450"], _nothing),
        minutes=60,
        needs=("atheris",),
        setup="make .venv/atheris",
        topic="fuzz",
    ),
    "fuzz-native": Part(
        *("tests.fuzz.native", ["--seconds", "1200"], _nothing),
        minutes=60,
        topic="fuzz_native",
    ),
    "fuzz-sessions": Part(
        *("tests.fuzz.sessions", ["--seconds", "600"], _nothing),
        minutes=10,
        topic="fuzz_sessions",
    ),
    "store": Part(
        *("benchmarks/kv_stress.py", ["--seconds", "300"], _nothing),
        minutes=6,
        topic="kv_stress_memory",
    ),
    "ranks": Part(
        *("benchmarks/tp_stress.py", ["--rounds", "100", "--seed", "2"], _nothing),
        minutes=6,
        topic="tp_stress",
    ),
    "releases": Part(
        *("benchmarks/release_pairs.py", ["--folder", f"{_FOLDERS}/releases"], _released),
        fetches=True,
        minutes=90,
        topic="release_pairs",
        counts=True,
    ),
    "libraries": Part(
        *("benchmarks/real_libraries.py", ["--folder", f"{_FOLDERS}/libraries"], _nothing),
        fetches=True,
        minutes=120,
        topic="real_libraries",
    ),
    "vllm": Part(
        "benchmarks/bench_imports.py",
        ["--package", "vllm", "--modules", "0", "--fresh", "4"],
        _nothing,
        minutes=10,
        needs=("vllm",),
        setup="pip install vllm==0.11.0",
        topic="imports_vllm",
    ),
    "managers": Part(
        *("tools/foreign_managers.py", ["--folder", f"{_FOLDERS}/managers"], _nothing),
        fetches=True,
        minutes=2,
        topic="foreign_managers",
    ),
    "window": Part(
        *("benchmarks/sliding_window.py", [], _nothing),
        minutes=0.5,
        needs=("transformers",),
        topic="sliding_window",
    ),
    "suites": Part(
        *("tools.foreign_suites", ["--folder", f"{_FOLDERS}/suites"], _nothing),
        fetches=True,
        minutes=600,
        topic="foreign_suites",
    ),
    "cuda-suites": Part(
        *("tools.foreign_suites", ["--torch", "--folder", f"{_FOLDERS}/cuda-suites"], _nothing),
        fetches=True,
        minutes=180,
        topic="library_suites",
    ),
}
"""The long parts that need no GPU, by name."""

_GRAPHS = "FULL_AND_PIECEWISE"
_ASYNC = [
    f'{{"worker_method": "{worker}", "cudagraph_mode": "{_GRAPHS}"{more}}}'
    for worker in ("inproc", "spawn")
    for more in ("", ', "async_scheduling": true')
]

LONG_GPU = {
    "touches": Part(
        *("benchmarks/touch_table.py", [], _nothing),
        minutes=0.5,
        gpus=1,
        topic="touch_table",
    ),
    "catch": Part(
        *("benchmarks/catch_rate.py", ["--gpu", "--jobs", "10"], _caught("gpu", "look", "checks")),
        minutes=2,
        gpus=1,
        topic="catch_rate",
        counts=True,
        alone="it keeps all cores busy",
    ),
    "soak": Part(
        "benchmarks/soak.py",
        ["--tests", "0", "--audits", "0", "--device", "cuda"],
        _nothing,
        minutes=8,
        gpus=1,
        topic="soak",
    ),
    "attention": Part(
        *("benchmarks/bench_attention.py", [], _nothing),
        minutes=1,
        gpus=1,
        topic="attention",
    ),
    "async": Part(
        "benchmarks/bench_engine.py",
        ["--batch", "1", "--rounds", "7", "--topic", "engine_async", "--settings", *_ASYNC],
        _nothing,
        minutes=0.5,
        gpus=1,
        topic="engine_async",
    ),
    "drafts": Part(
        "benchmarks/bench_speculation.py",
        ["--device", "cuda", "--only", "speed", "--step-graphs", "--modes", "NONE", _GRAPHS],
        _nothing,
        minutes=1,
        gpus=1,
        topic="speculation",
        alone="its times are the processor's",
    ),
    "tp": Part(
        *("benchmarks/bench_tp.py", ["--ranks", "1", "2", "4"], _nothing),
        minutes=1,
        gpus=2,
        topic="tensor_parallel",
    ),
}
"""The long parts that need GPUs, by name."""
