"""Correct programs that look as if they had one of the bugs: none of them may raise an alarm.

Each is what engines do on purpose. They know the public names of the plugin alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from tests.specimens.graphs.bench import Bench
from tests.specimens.graphs.engine import BLOCK, Desc, paged_attention, slots_of

ROWS, PAGES, WIDTH = 4, 3, 8
SLOTS = (1 + ROWS * PAGES) * BLOCK


@dataclass
class _Config:
    """A mutable object that nobody mutates."""

    scale: float = 0.5
    layers: list[str] = field(default_factory=lambda: ["layers.0", "layers.1"])


@dataclass
class _Metadata:
    seq_lens: torch.Tensor
    plan: torch.Tensor | None = None


class _State(NamedTuple):
    attn_metadata: dict[str, _Metadata]
    slot_mapping: torch.Tensor
    config: _Config | None = None


class _Cell:
    """Something to hold a tensor that is made later."""

    def __init__(self) -> None:
        self.tensor: torch.Tensor | None = None


def persistent_inputs_shared(bench: Bench) -> None:
    """Warm-up and capture share lengths, slots and block tables; all else is made anew."""
    seq_lens, slots = bench.ints(1, 9, ROWS), bench.ints(0, SLOTS, ROWS)
    table = bench.tensor(bench.shuffled(ROWS * PAGES, 1)).view(ROWS, PAGES)
    query, cache = bench.randn(ROWS, WIDTH), bench.randn(SLOTS, WIDTH)

    def create_forward_fn(desc: Desc, warmup: bool) -> tuple[Any, _State]:
        state = _State({"layers.0": _Metadata(seq_lens)}, slots)

        def forward(mode: str) -> torch.Tensor:
            metadata = state.attn_metadata["layers.0"]
            if metadata.plan is None:
                metadata.plan = metadata.seq_lens.float().rsqrt()
            out = paged_attention(query, cache, table, metadata.seq_lens)
            return out * metadata.plan[:, None]

        return forward, state

    bench.capture_pair(
        create_forward_fn,
        Desc(ROWS, ROWS),
        persistent={"seq_lens": seq_lens, "slots": slots, "table": table, "query": query},
        vary=[
            lambda: seq_lens.copy_(bench.ints(1, 9, ROWS)),
            lambda: table.copy_(table.flip(0)),
            lambda: query.copy_(bench.randn(ROWS, WIDTH)),
        ],
    )


def piecewise_pair_is_one_object(bench: Bench) -> None:
    """For PIECEWISE graphs the states of warm-up and capture are one object on purpose."""
    seq_lens, query = bench.ints(1, 9, ROWS), bench.randn(ROWS, WIDTH)
    state = _State({"layers.0": _Metadata(seq_lens)}, seq_lens)

    def create_forward_fn(desc: Desc, warmup: bool) -> tuple[Any, _State]:
        return lambda mode: query * state.attn_metadata["layers.0"].seq_lens[:, None], state

    bench.capture_pair(
        create_forward_fn,
        Desc(ROWS, ROWS),
        mode="PIECEWISE",
        persistent={"seq_lens": seq_lens, "query": query},
    )


def factory_is_called_anew_without_warmup(bench: Bench) -> None:
    """The factory of later engines takes no ``warmup`` and returns the forward alone."""
    hidden, weight = bench.randn(ROWS, WIDTH), bench.randn(WIDTH, WIDTH)
    out = bench.zeros(ROWS, WIDTH)

    def create_forward_fn(desc: Desc) -> Any:
        def forward(mode: str) -> None:
            torch.mm(hidden, weight, out=out)

        return forward

    bench.capture_pair(
        create_forward_fn,
        Desc(ROWS, ROWS),
        persistent={"hidden": hidden},
        outputs=lambda: out,
        vary=[lambda: hidden.copy_(bench.randn(ROWS, WIDTH))],
    )


def config_shared_by_both_states(bench: Bench) -> None:
    """Both states hold the engine's mutable configuration, a module and its weights."""
    config, layer = _Config(), torch.nn.Linear(WIDTH, WIDTH, device=bench.device)
    hidden, slots = bench.randn(ROWS, WIDTH), bench.ints(0, SLOTS, ROWS)

    def create_forward_fn(desc: Desc, warmup: bool) -> tuple[Any, Any]:
        state = {"metadata": _Metadata(slots), "config": config, "layer": layer}

        def forward(mode: str) -> torch.Tensor:
            with torch.no_grad():
                done: torch.Tensor = layer(hidden) * config.scale + slots[:, None]
            return done

        return forward, state

    bench.capture_pair(
        create_forward_fn,
        Desc(ROWS, ROWS),
        persistent={"hidden": hidden, "slots": slots},
        shared=[config, layer],
    )


def lazy_table_of_constants(bench: Bench) -> None:
    """The warm-up makes a table of rotary angles, which depends on no input; capture reuses it."""
    positions, hidden = bench.ints(0, 64, ROWS), bench.randn(ROWS, WIDTH)
    cell = _Cell()

    def create_forward_fn(desc: Desc, warmup: bool) -> tuple[Any, dict[str, torch.Tensor]]:
        state = {"positions": positions}

        def forward(mode: str) -> torch.Tensor:
            if cell.tensor is None:
                steps = torch.arange(64, device=hidden.device, dtype=torch.float32)
                cell.tensor = torch.cos(steps[:, None] / torch.arange(1, 9, device=hidden.device))
            return hidden * cell.tensor[state["positions"]]

        return forward, state

    bench.capture_pair(
        create_forward_fn,
        Desc(ROWS, ROWS),
        persistent={"positions": positions, "hidden": hidden},
        vary=[lambda: positions.copy_(bench.ints(0, 64, ROWS))],
    )


def workspace_reserved_before(bench: Bench) -> None:
    """All sizes share one workspace, which has its largest size before the first capture."""
    workspace = bench.zeros(64, WIDTH)

    def step(hidden: torch.Tensor) -> torch.Tensor:
        part = workspace[: hidden.shape[0]]
        part.copy_(hidden.exp())
        return part / part.sum(-1, keepdim=True)

    hidden, larger = bench.randn(ROWS, WIDTH), bench.randn(32, WIDTH)
    bench.replay(
        step,
        [hidden],
        interleave=[lambda: step(larger)],
        vary=[lambda: hidden.copy_(bench.randn(ROWS, WIDTH))],
    )


def workspace_grows_before_capture(bench: Bench) -> None:
    """The workspace grows in the warm-up, and never again."""
    cell = _Cell()

    def step(hidden: torch.Tensor) -> torch.Tensor:
        if cell.tensor is None or cell.tensor.shape[0] < hidden.shape[0]:
            cell.tensor = torch.zeros_like(hidden)
        cell.tensor[: hidden.shape[0]] = hidden.sin()
        return cell.tensor[: hidden.shape[0]] * 2

    hidden, smaller = bench.randn(16, WIDTH), bench.randn(ROWS, WIDTH)
    step(smaller)
    bench.replay(step, [hidden], interleave=[lambda: step(smaller)])


def kv_cache_written_in_place(bench: Bench) -> None:
    """Every replay writes new keys to other slots of one cache and reads older ones."""
    hidden, cache = bench.randn(ROWS, WIDTH), bench.randn(SLOTS, WIDTH)
    table = bench.tensor(bench.shuffled(ROWS * PAGES, 1)).view(ROWS, PAGES)
    seq_lens = bench.ints(0, BLOCK * PAGES - 1, ROWS)

    def step(
        hidden: torch.Tensor, cache: torch.Tensor, table: torch.Tensor, seq_lens: torch.Tensor
    ) -> torch.Tensor:
        cache.index_copy_(0, slots_of(table, seq_lens), hidden)
        return paged_attention(hidden, cache, table, seq_lens + 1)

    static = {"hidden": hidden, "cache": cache, "table": table, "seq_lens": seq_lens}
    bench.replay(
        step,
        static,
        vary=[
            lambda: seq_lens.add_(1).remainder_(BLOCK * PAGES - 1),
            lambda: hidden.copy_(bench.randn(ROWS, WIDTH)),
            lambda: table.copy_(table.flip(1)),
        ],
    )


def state_that_nobody_declared(bench: Bench) -> None:
    """The model holds its cache and a counter on the device, which the inputs do not mention."""

    class Model:
        def __init__(self) -> None:
            self.cache = bench.zeros(SLOTS, WIDTH)
            self.steps = bench.zeros(1, dtype=torch.int64)

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            self.steps.add_(1)
            self.cache.mul_(0.5)
            self.cache[: hidden.shape[0]] += hidden
            return self.cache.sum(0) * self.steps

    model, hidden = Model(), bench.randn(ROWS, WIDTH)
    bench.replay(
        model.forward, [hidden], vary=[lambda: hidden.copy_(bench.randn(ROWS, WIDTH))] * 2
    )


def dropout_draws_anew(bench: Bench) -> None:
    """Dropout and sampling draw other numbers in every replay."""

    def step(hidden: torch.Tensor) -> torch.Tensor:
        kept = torch.nn.functional.dropout(hidden, 0.5)
        return kept + torch.rand_like(hidden)

    hidden = bench.randn(ROWS, 64)
    bench.replay(
        step, [hidden], rng=True, vary=[lambda: hidden.copy_(bench.randn(ROWS, 64))]
    )


def optional_input_refilled(bench: Bench) -> None:
    """An input that a batch does not have is filled with what stands for nothing."""
    static = {"hidden": bench.randn(ROWS, WIDTH), "bias": bench.randn(ROWS, WIDTH)}
    batches = [(bench.randn(ROWS, WIDTH), None), (bench.randn(ROWS, WIDTH), bench.randn(WIDTH))]

    def prepare(number: int) -> None:
        hidden, bias = batches[number]
        static["hidden"].copy_(hidden)
        static["bias"].zero_() if bias is None else static["bias"].copy_(bias.expand(ROWS, WIDTH))

    bench.replay(
        lambda hidden, bias: (hidden + bias).relu(),
        static,
        refills=True,
        vary=[lambda: prepare(0), lambda: prepare(1)],
    )


def padded_rows_hold_anything(bench: Bench) -> None:
    """A padded row's output is garbage, and nobody reads it."""
    seq_lens, query = bench.ints(1, 9, ROWS), bench.randn(ROWS, WIDTH)
    live = [ROWS]

    def shrink() -> int:
        live[0] = 2
        seq_lens[:2] = bench.ints(1, 9, 2)
        return 2

    def step(query: torch.Tensor, seq_lens: torch.Tensor) -> torch.Tensor:
        return query / seq_lens[:, None]

    def eager(query: torch.Tensor, seq_lens: torch.Tensor) -> torch.Tensor:
        out = torch.full_like(query, 5.0)
        out[: live[0]] = step(query[: live[0]], seq_lens[: live[0]])
        return out

    bench.replay(step, [query, seq_lens], eager=eager, vary=[shrink])


PROGRAMS = (
    persistent_inputs_shared,
    piecewise_pair_is_one_object,
    factory_is_called_anew_without_warmup,
    config_shared_by_both_states,
    lazy_table_of_constants,
    workspace_reserved_before,
    workspace_grows_before_capture,
    kv_cache_written_in_place,
    state_that_nobody_declared,
    dropout_draws_anew,
    optional_input_refilled,
    padded_rows_hold_anything,
)
