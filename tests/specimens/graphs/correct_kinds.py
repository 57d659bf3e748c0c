"""Correct programs of other kinds: training, custom operators, modes, scalars, shared buffers.

None of them may raise an alarm. They know the public names of the plugin alone.
"""

from __future__ import annotations

from typing import Any

import torch

from tests.specimens.graphs.bench import Bench

ROWS, WIDTH = 4, 8


def cache_written_and_returned(bench: Bench) -> None:
    """The output is the whole of a cache, of which each step writes a few rows."""
    cache, slots = bench.randn(16, WIDTH), bench.tensor(bench.shuffled(16)[:ROWS])
    hidden = bench.randn(ROWS, WIDTH)

    def step(hidden: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        return cache.index_copy_(0, slots, hidden)

    bench.replay(
        step,
        {"hidden": hidden, "slots": slots},
        vary=[
            lambda: slots.copy_(bench.tensor(bench.shuffled(16)[:ROWS])),
            lambda: hidden.copy_(bench.randn(ROWS, WIDTH)),
        ],
    )


def under_inference_mode(bench: Bench) -> None:
    """Everything happens in inference mode, as in most engines."""
    with torch.inference_mode():
        hidden, weight = bench.randn(ROWS, WIDTH), bench.randn(WIDTH, WIDTH)
        cache = bench.zeros(16, WIDTH)

        def step(hidden: torch.Tensor) -> torch.Tensor:
            cache[:ROWS].add_(hidden)
            return (cache[:ROWS] @ weight).relu_()

        bench.replay(step, [hidden], vary=[lambda: hidden.copy_(bench.randn(ROWS, WIDTH))])


def training_step(bench: Bench) -> None:
    """Forward, backward and optimizer in one graph; gradients are set to None before each."""
    layer = torch.nn.Linear(WIDTH, 1, device=bench.device)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01, momentum=0.9)
    data, target = bench.randn(ROWS, WIDTH), bench.randn(ROWS, 1)

    def step(data: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.mse_loss(layer(data), target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    for _ in range(2):  # the optimizer makes its state in the first step
        step(data, target)
    bench.replay(
        step, [data, target], vary=[lambda: data.copy_(bench.randn(ROWS, WIDTH))] * 2
    )


def scalar_inputs(bench: Bench) -> None:
    """Inputs without dimensions change between replays: a scale, a step, a flag."""
    hidden, scale = bench.randn(ROWS, WIDTH), bench.randn(1)[0].clone()
    step_number, flag = bench.ints(0, 50, 1)[0].clone(), bench.tensor(True)

    def step(
        hidden: torch.Tensor, scale: torch.Tensor, number: torch.Tensor, flag: torch.Tensor
    ) -> torch.Tensor:
        out = hidden * scale + number
        return torch.where(flag, out, -out).clamp(max=scale * 3)

    bench.replay(
        step,
        [hidden, scale, step_number, flag],
        vary=[lambda: scale.fill_(2.5), lambda: step_number.add_(1), lambda: flag.fill_(False)],
    )


def masks_that_need_no_sync(bench: Bench) -> None:
    """Assignment by mask, scatter, sort, top-k and a search: none asks the device anything."""
    scores, tokens = bench.randn(ROWS, 16), bench.ints(0, 16, ROWS)

    def step(scores: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, ...]:
        kept = scores.clone()
        kept[scores < 0] = 0.0
        counts = torch.zeros(16, dtype=torch.int64, device=scores.device)
        counts.scatter_add_(0, tokens, torch.ones_like(tokens))
        ordered, order = kept.sort(dim=-1, stable=True)
        place = torch.searchsorted(counts.cumsum(0), tokens)
        return kept, counts, ordered.gather(-1, order), place, kept.topk(3).values

    bench.replay(
        step,
        [scores, tokens],
        vary=[lambda: scores.neg_(), lambda: tokens.copy_(bench.ints(0, 16, ROWS))],
    )


def custom_operator_that_mutates(bench: Bench) -> None:
    """A custom operator writes its result to a buffer that it is given."""
    with torch.library._scoped_library("cudafork_specimens", "FRAGMENT") as library:
        library.define("scale_rows(Tensor x, Tensor by, Tensor(a!) out) -> ()")

        def scale_rows(x: torch.Tensor, by: torch.Tensor, out: torch.Tensor) -> None:
            torch.mul(x, by[:, None], out=out)

        library.impl("scale_rows", scale_rows, "CPU")
        library.impl("scale_rows", scale_rows, "CUDA")
        hidden, by = bench.randn(ROWS, WIDTH), bench.randn(ROWS)

        def step(hidden: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(hidden)
            torch.ops.cudafork_specimens.scale_rows(hidden, by, out)
            return out.tanh()

        bench.replay(step, [hidden, by], vary=[lambda: by.copy_(bench.randn(ROWS))])


def autocast_inside(bench: Bench) -> None:
    """The forward computes in half precision, with weights that are cast on the way."""
    hidden, layer = bench.randn(ROWS, WIDTH), torch.nn.Linear(WIDTH, WIDTH, device=bench.device)

    def step(hidden: torch.Tensor) -> torch.Tensor:
        with torch.no_grad(), torch.autocast(bench.device, dtype=torch.bfloat16):
            done: torch.Tensor = layer(layer(hidden))
        return done

    bench.replay(step, [hidden], vary=[lambda: hidden.copy_(bench.randn(ROWS, WIDTH))])


def inputs_of_every_kind(bench: Bench) -> None:
    """Among the inputs are numbers, None, strings and nested tensors; one tensor comes twice."""
    hidden, bias = bench.randn(ROWS, WIDTH), bench.randn(WIDTH)
    inputs: dict[str, Any] = {
        "hidden": hidden,
        "options": {"bias": bias, "scale": 2, "name": "gelu", "nothing": None},
        "parts": [hidden[:2], hidden],
        "count": 3,
        "empty": hidden[:0],
    }

    def step(
        hidden: torch.Tensor, options: dict[str, Any], parts: Any, count: int, empty: torch.Tensor
    ) -> torch.Tensor:
        activation = getattr(torch.nn.functional, options["name"])
        out: torch.Tensor = activation(hidden * options["scale"] + options["bias"])
        return torch.cat([out, parts[0] * count, parts[1], empty])

    bench.replay(
        step,
        inputs,
        vary=[lambda: bias.copy_(bench.randn(WIDTH)), lambda: hidden.mul_(-1)],
    )


def static_inputs_of_all_sizes(bench: Bench) -> None:
    """All sizes share the static inputs: another size overwrites them and must not matter."""
    static, out = bench.randn(16, WIDTH), bench.zeros(16, WIDTH)

    def run(rows: int) -> torch.Tensor:
        torch.cumsum(static[:rows], 0, out=out[:rows])
        return out[:rows]

    def other_size() -> torch.Tensor:
        return run(16)

    bench.replay(
        lambda hidden: run(ROWS),
        [static[:ROWS]],
        interleave=[other_size],
        vary=[lambda: static.copy_(bench.randn(16, WIDTH))],
    )


def same_tensor_twice_in_the_output(bench: Bench) -> None:
    """Outputs overlap: a tensor, a view of it, its transpose and itself again."""
    hidden = bench.randn(ROWS, WIDTH)

    def step(hidden: torch.Tensor) -> list[torch.Tensor]:
        out = hidden + 1
        return [out, out[1:], out.t(), out, out.view(-1)[::2]]

    bench.replay(step, [hidden], vary=[lambda: hidden.copy_(bench.randn(ROWS, WIDTH))])


PROGRAMS = (
    cache_written_and_returned,
    under_inference_mode,
    training_step,
    scalar_inputs,
    masks_that_need_no_sync,
    custom_operator_that_mutates,
    autocast_inside,
    inputs_of_every_kind,
    static_inputs_of_all_sizes,
    same_tensor_twice_in_the_output,
)
