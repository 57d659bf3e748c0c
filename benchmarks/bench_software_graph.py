"""Measures the software graph: capture and replay of many operators, beside eager code.

CPU seconds of this process are measured; the kinds take turns, and the ratio compares the smallest
values: what a neighbor adds is never negative.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from results_file import parser, publish, table

from pytest_cudafork.capture.software.backend import SoftwareBackend

LIMIT = 20  # capture and replay together, in times of the eager run
OPERATORS = 400


def small() -> Callable[[], Any]:
    """Matrix products and activations of 64 x 64."""
    x, w = torch.randn(64, 64), torch.randn(64, 64) / 8

    def fn() -> Any:
        y = x
        for _ in range(OPERATORS // 2):
            y = torch.relu(y @ w)
        return y

    return fn


def in_place() -> Callable[[], Any]:
    """Views and operators in place."""
    x = torch.randn(64, 64)

    def fn() -> Any:
        for row in range(OPERATORS // 2):
            x[row % 64].mul_(0.5).add_(x[(row + 1) % 64])
        return x

    return fn


def layers() -> Callable[[], Any]:
    """A transformer without gradients, about 400 operators."""
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    net = torch.nn.TransformerEncoder(layer, 24, enable_nested_tensor=False)
    x = torch.randn(2, 16, 64)

    def fn() -> Any:
        with torch.no_grad():
            return net(x)

    return fn


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of a call, and what it gave."""
    gc.collect()
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def measure(make: Callable[[], Callable[[], Any]], rounds: int) -> dict[str, Any]:
    """Eager, first capture in a backend, later captures, replays, and a recorded eager run."""
    fn, backend = make(), SoftwareBackend()
    fn()
    first, graph = seconds(lambda: SoftwareBackend().capture(fn))
    found: dict[str, list[float]] = {"eager": [], "capture": [], "replay": [], "record": []}
    for _ in range(rounds):
        found["eager"].append(seconds(fn)[0])
        taken, graph = seconds(lambda: backend.capture(fn))
        found["capture"].append(taken)
        found["replay"].append(seconds(graph.replay)[0])
        found["record"].append(seconds(lambda: backend.record(fn))[0])
    least = {kind: min(each) for kind, each in found.items()}
    return {
        "operators": len(graph.recording.nodes or ()),
        "first_capture": first,
        **{f"{kind}_least": value for kind, value in least.items()},
        **{f"{kind}_median": statistics.median(each) for kind, each in found.items()},
        "ratio": (least["capture"] + least["replay"]) / least["eager"],
        "ratio_of_first": (first + least["replay"]) / least["eager"],
    }


def main() -> None:
    """Measure, print, and keep the results if that is asked for."""
    args = parser(__doc__ or "", rounds=7).parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    kinds = {"relu(x @ w), 64 x 64": small, "views, in place": in_place, "transformer": layers}
    outcomes = {name: measure(make, args.rounds) for name, make in kinds.items()}
    rows = [
        [
            name,
            str(each["operators"]),
            *(f"{each[kind] * 1e3:.1f}" for kind in (
                "eager_least", "record_least", "first_capture", "capture_least", "replay_least",
            )),
            f"{each['ratio']:.1f}",
            f"{each['ratio_of_first']:.1f}",
        ]
        for name, each in outcomes.items()
    ]  # fmt: skip
    header = ["work", "operators", "eager ms", "recorded ms", "first capture ms", "capture ms"]
    header += ["replay ms", "(capture + replay) / eager", "with a first capture"]
    text = table(header, rows)
    text += f"\n\nAt most {LIMIT} is wanted. CPU time, the smallest of {args.rounds} rounds."
    data = {"limit": LIMIT, "outcomes": outcomes}
    publish("software_graph", "The software graph", text, data, save=args.save)


if __name__ == "__main__":
    main()
