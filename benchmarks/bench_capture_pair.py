"""Measures ``capture_pair`` on a GPU, beside a plain warm-up and capture of the same code.

Without a GPU it measures the software graph instead, beside two eager runs, since nothing else
captures there.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from results_file import parser, publish, table

from pytest_cudafork.capture.choose import usable
from pytest_cudafork.capture.pair.capture_pair import capture_pair

LAYERS = (2, 8, 32)
WIDTH, ROWS = 256, 32


class State:
    """What a pass holds: the static input, and a buffer that is planned in the first call."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x
        self.scale: torch.Tensor | None = None


def factory(layers: int, device: str) -> tuple[Callable[..., Any], torch.Tensor]:
    """Return a factory of a stack of linear layers, and its static input."""
    weights = [torch.randn(WIDTH, WIDTH, device=device) / WIDTH**0.5 for _ in range(layers)]
    x = torch.randn(ROWS, WIDTH, device=device)

    def create(desc: int, warmup: bool) -> tuple[Callable[[], torch.Tensor], State]:
        state = State(x[:desc])

        def forward() -> torch.Tensor:
            if state.scale is None:
                state.scale = torch.full_like(state.x, 2.0)
            hidden = state.x * state.scale
            for weight in weights:
                hidden = torch.relu(hidden @ weight) + state.x
            return hidden

        return forward, state

    return create, x


def plain(create: Callable[..., Any], device: str) -> None:
    """Warm up and capture, as code without the plugin does it."""
    forward, _ = create(ROWS, True)
    if device == "cpu":
        forward()
        create(ROWS, False)[0]()
        return
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        forward()
    torch.cuda.current_stream().wait_stream(side)
    forward, _ = create(ROWS, False)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        forward()
    torch.cuda.synchronize()


def milliseconds(run: Callable[[], Any], rounds: int) -> float:
    """Return the median time of a call, after a first one that is not counted."""
    run()
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        run()
        times.append((time.perf_counter() - started) * 1e3)
    return statistics.median(times)


def measure(layers: int, rounds: int, name: str, device: str) -> dict[str, float]:
    """Return the time of each part, in milliseconds."""
    create, x = factory(layers, device)
    backend = usable(name)

    def captured() -> None:
        backend.capture(create(ROWS, False)[0]).reset()

    def pair() -> None:
        capture_pair(create, ROWS, persistent={"x": x}, backend=name).graph.reset()

    with torch.inference_mode():
        return {
            "plain": milliseconds(lambda: plain(create, device), rounds),
            "record": milliseconds(lambda: backend.record(create(ROWS, True)[0]), rounds),
            "capture": milliseconds(captured, rounds),
            "pair": milliseconds(pair, rounds),
        }


def main() -> None:
    """Measure, print, and keep the results if that is asked for."""
    options = parser("Cost of capture_pair against a plain capture.", rounds=20).parse_args()
    name = usable("auto").name
    device = "cuda" if name == "cuda" else "cpu"
    torch.set_num_threads(1)
    rows, data = [], {}
    for layers in LAYERS:
        times = measure(layers, options.rounds, name, device)
        ratio = times["pair"] / times["plain"]
        rows.append(
            [f"{layers} layers", *(f"{time:.2f}" for time in times.values()), f"{ratio:.1f}"]
        )
        data[str(layers)] = {**{key: round(time, 3) for key, time in times.items()}}
    header = ["program", "plain ms", "warm-up ms", "capture ms", "capture_pair ms", "pair / plain"]
    text = table(header, rows)
    text += (
        "\n\nplain: a warm-up and a capture without the plugin (on a CPU: two eager runs). warm-up "
        "and\ncapture: those of the plugin, with lines, memory and kernels. capture_pair: both, "
        "six checks and\nthe replays that are compared with eager runs."
    )
    publish(
        "capture_pair",
        "Cost of capture_pair against a plain capture",
        text,
        {"rounds": options.rounds, "backend": name, "milliseconds": data},
        save=options.save,
    )


if __name__ == "__main__":
    main()
