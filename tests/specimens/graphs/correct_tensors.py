"""Correct programs whose tensors look suspicious: none of them may raise an alarm.

They know the public names of the plugin alone.
"""

from __future__ import annotations

import torch

from tests.specimens.graphs.bench import Bench

ROWS, WIDTH = 4, 8


def returns_an_input_and_a_weight(bench: Bench) -> None:
    """Among the outputs are an input and a constant, which no replay writes."""
    hidden, weight = bench.randn(ROWS, WIDTH), bench.randn(WIDTH)

    def step(hidden: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return hidden * weight, hidden, weight

    bench.replay(step, [hidden], vary=[lambda: hidden.copy_(bench.randn(ROWS, WIDTH))])


def changes_its_input_in_place(bench: Bench) -> None:
    """The output is the input, which the forward has changed."""
    residual, hidden = bench.randn(ROWS, WIDTH), bench.randn(ROWS, WIDTH)

    def step(residual: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        residual.add_(hidden)
        return torch.tanh(residual), residual

    bench.replay(
        step, [residual, hidden], vary=[lambda: hidden.copy_(bench.randn(ROWS, WIDTH))] * 2
    )


def inputs_are_views_of_one_buffer(bench: Bench) -> None:
    """Inputs overlap: tokens and the same tokens shifted by one, within one arena."""
    arena = bench.ints(0, 50, 16)
    tokens, following, lengths = arena[:8], arena[1:9], arena[12:]

    def step(
        tokens: torch.Tensor, following: torch.Tensor, lengths: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        return {"same": tokens == following, "sum": tokens.sum() + lengths.amax()}

    static = {"tokens": tokens, "following": following, "lengths": lengths}
    bench.replay(
        step, static, vary=[lambda: arena.copy_(bench.ints(0, 50, 16)), lambda: arena.fill_(3)]
    )


def outputs_hold_nan_and_infinity(bench: Bench) -> None:
    """A row without a key attends to nothing: its output is NaN in eager code too."""
    scores, lengths = bench.randn(ROWS, WIDTH), bench.tensor([0, 3, 8, 1])

    def step(scores: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        places = torch.arange(WIDTH, device=scores.device)
        masked = scores.masked_fill(places[None] >= lengths[:, None], float("-inf"))
        return masked.softmax(-1), masked

    bench.replay(
        step, [scores, lengths], vary=[lambda: lengths.copy_(bench.tensor([8, 0, 0, 2]))]
    )


def outputs_of_every_kind(bench: Bench) -> None:
    """Outputs are whole numbers, truth values, empty, without dimensions, half precision, None."""
    hidden = bench.randn(ROWS, WIDTH)

    def step(hidden: torch.Tensor) -> dict[str, object]:
        return {
            "token": hidden.argmax(-1),
            "kept": hidden > 0,
            "none": None,
            "empty": hidden[:0] * 2,
            "mean": hidden.mean(),
            "half": (hidden * 3).to(torch.bfloat16),
            "number": 7,
            "parts": [part.clone() for part in hidden.split(2)],
        }

    bench.replay(step, [hidden], vary=[lambda: hidden.copy_(bench.randn(ROWS, WIDTH))])


def transposed_inputs_and_outputs(bench: Bench) -> None:
    """Inputs and outputs are not contiguous; one is expanded, of stride 0."""
    hidden, scale = bench.randn(WIDTH, ROWS).t(), bench.randn(1, WIDTH).expand(ROWS, WIDTH)

    def step(hidden: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return (hidden * scale + 1).t()

    bench.replay(step, [hidden, scale], vary=[lambda: hidden.copy_(bench.randn(ROWS, WIDTH))])


def fresh_memory_wholly_written(bench: Bench) -> None:
    """Memory that is not initialized is filled before it is read."""
    hidden = bench.randn(ROWS, WIDTH)

    def step(hidden: torch.Tensor) -> torch.Tensor:
        out = torch.empty(ROWS, 2 * WIDTH, device=hidden.device)
        out[:, :WIDTH] = hidden
        out[:, WIDTH:] = -hidden
        scratch = torch.empty_like(hidden).copy_(hidden)
        return out.softmax(-1) * scratch.sum()

    bench.replay(step, [hidden], vary=[lambda: hidden.copy_(bench.randn(ROWS, WIDTH))])


def output_does_not_depend_on_what_varies(bench: Bench) -> None:
    """The output is the same after the change: a length that only masks what is zero anyway."""
    hidden, lengths = bench.zeros(ROWS, WIDTH), bench.ints(1, 8, ROWS)

    def step(hidden: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        places = torch.arange(WIDTH, device=hidden.device)
        return torch.where(places[None] < lengths[:, None], hidden, 0.0)

    bench.replay(step, [hidden, lengths], vary=[lambda: lengths.copy_(bench.ints(1, 8, ROWS))])


def output_buffer_of_the_engine(bench: Bench) -> None:
    """The forward writes to the engine's own buffer, rows at a time, and returns a view of it."""
    hidden, out = bench.randn(ROWS, WIDTH), bench.randn(16, WIDTH)

    def step(hidden: torch.Tensor) -> torch.Tensor:
        out[:ROWS] = hidden.square()
        return out[:ROWS]

    bench.replay(step, [hidden], vary=[lambda: hidden.copy_(bench.randn(ROWS, WIDTH))])


def optimizer_step(bench: Bench) -> None:
    """A captured training step changes weights and moments, which are nobody's inputs."""
    weight = torch.nn.Parameter(bench.randn(WIDTH, WIDTH))
    momentum = bench.zeros(WIDTH, WIDTH)
    data = bench.randn(ROWS, WIDTH)

    def step(data: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            loss = (data @ weight - data).square().mean()
            gradient = 2 * data.t() @ (data @ weight - data) / data.numel()
            momentum.mul_(0.9).add_(gradient)
            weight.sub_(0.1 * momentum)
        return loss

    bench.replay(step, [data], vary=[lambda: data.copy_(bench.randn(ROWS, WIDTH))] * 2)


def random_refill(bench: Bench) -> None:
    """The refill draws another batch each time it is asked."""
    hidden = bench.randn(ROWS, WIDTH)
    bench.replay(
        lambda hidden: hidden * 2,
        [hidden],
        refills=True,
        vary=[lambda: hidden.copy_(bench.randn(ROWS, WIDTH))],
    )


PROGRAMS = (
    returns_an_input_and_a_weight,
    changes_its_input_in_place,
    inputs_are_views_of_one_buffer,
    outputs_hold_nan_and_infinity,
    outputs_of_every_kind,
    transposed_inputs_and_outputs,
    fresh_memory_wholly_written,
    output_does_not_depend_on_what_varies,
    output_buffer_of_the_engine,
    optimizer_step,
    random_refill,
)
