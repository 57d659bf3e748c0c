"""Measures calls of torch's C functions that are watched, against the same calls unwatched.

The watch is put in force and taken back between two measurements of the same call, in one process,
in CPU time; the kinds take turns. The ratio compares the smallest values, as a neighbor on a shared
machine adds time and never takes any. What fails is not measured: such a call is a touch.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable

import torch
from arguments import at_least
from results_file import parser, publish, table

from pytest_cudafork.observe.driver import phantom
from pytest_cudafork.observe.torch.api import TorchWitness

_TENSOR = torch.ones(1)
CALLS: dict[str, Callable[[], object]] = {
    "torch.empty(0)": lambda: torch.empty(0),
    "torch.empty(0, dtype=...)": lambda: torch.empty(0, dtype=torch.float32),
    "torch.zeros((4, 4))": lambda: torch.zeros((4, 4)),
    "torch.tensor(1.0)": lambda: torch.tensor(1.0),
    "torch.randn(64, 64)": lambda: torch.randn(64, 64),
    "tensor.new_empty(0)": lambda: _TENSOR.new_empty(0),
    "tensor.is_pinned()": lambda: _TENSOR.is_pinned(),
    "torch.Generator()": lambda: torch.Generator(),
    "torch.add(t, t), not watched": lambda: torch.add(_TENSOR, _TENSOR),
}


def seconds(call: Callable[[], object], times: int) -> float:
    """Return the CPU seconds of so many calls."""
    start = time.process_time()
    for _ in range(times):
        call()
    return time.process_time() - start


def main() -> None:
    """Measure, print, and keep the results if that is asked for."""
    made = parser("CPU time of calls of torch's C functions, watched and not.", rounds=31)
    made.add_argument(
        "--calls", type=at_least(1), default=5000, help="calls a round (default 5000)"
    )
    options = made.parse_args()
    plain: dict[str, list[float]] = {name: [] for name in CALLS}
    watched: dict[str, list[float]] = {name: [] for name in CALLS}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["_CUDAFORK_LEDGER"] = os.path.join(folder, "ledger.jsonl")
        native = phantom.install("absent").native
        for number in range(options.rounds + 1):
            for name, call in CALLS.items():
                before = seconds(call, options.calls)
                take_back = TorchWitness("absent", _never, native).install()
                during = seconds(call, options.calls)
                take_back()
                if number:  # the first round fills caches
                    plain[name].append(before)
                    watched[name].append(during)
    least = {name: (min(plain[name]), min(watched[name])) for name in CALLS}
    rows = [
        [
            name,
            f"{before / options.calls * 1e9:.0f}",
            f"{during / options.calls * 1e9:.0f}",
            f"{during / before:.3f}",
        ]
        for name, (before, during) in least.items()
    ]
    header = ["call", "ns unwatched", "ns watched", "ratio"]
    data = {
        "rounds": options.rounds,
        "calls": options.calls,
        "ratios": {name: round(during / before, 4) for name, (before, during) in least.items()},
    }
    title = "Price of a watched call of a C function of torch"
    publish("watched_calls", title, table(header, rows), data, save=options.save)


def _never(entry: str, *, again: bool, stack: object) -> None:
    raise AssertionError(f"{entry} was recorded, and none of these calls is a touch")


if __name__ == "__main__":
    main()
