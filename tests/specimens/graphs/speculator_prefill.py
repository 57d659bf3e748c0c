"""A speculator's prefill graph reuses the target model's captured metadata for both passes.

Stands for vllm-project/vllm#44253. The draft layer plans lazily, once for each metadata object.
The warm-up plans; capture finds the flag set and leaves the planner out of the graph.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from tests.specimens.graphs.bench import Bench
from tests.specimens.graphs.engine import Desc

CAPACITY = 8


@dataclass
class TileScheduler:
    have_initialized: bool = False
    plan: torch.Tensor | None = None


@dataclass
class AttentionMetadata:
    num_reqs: int
    seq_lens: torch.Tensor
    scheduler: TileScheduler = field(default_factory=TileScheduler)


class AttentionState(NamedTuple):
    attn_metadata: dict[str, AttentionMetadata]
    slot_mappings: dict[str, torch.Tensor]


class AttentionStatePair(NamedTuple):
    warmup: AttentionState
    captured: AttentionState


class TargetRunner:
    """Builds the states which the speculator is handed when the target's graphs are captured."""

    def __init__(self, bench: Bench) -> None:
        self.seq_lens = bench.ints(1, 40, CAPACITY)
        self.slot_mapping = bench.tensor(range(CAPACITY))

    def build(self, desc: Desc) -> AttentionState:
        metadata = AttentionMetadata(desc.num_reqs, self.seq_lens[: desc.num_reqs])
        slots = self.slot_mapping[: desc.num_tokens]
        return AttentionState({"mtp.0": metadata}, {"mtp.0": slots})

    def capture(self, descs: list[Desc]) -> dict[Desc, AttentionStatePair]:
        return {desc: AttentionStatePair(self.build(desc), self.build(desc)) for desc in descs}


def draft_layer(hidden: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
    scheduler = metadata.scheduler
    if not scheduler.have_initialized:
        scheduler.plan = torch.reciprocal(metadata.seq_lens.float())
        scheduler.have_initialized = True  # graph: named
    assert scheduler.plan is not None
    return hidden * scheduler.plan[:, None]


class Speculator:
    """Captures its own prefill graph with the states of the target."""

    def __init__(self, states: dict[Desc, AttentionStatePair], bench: Bench) -> None:
        self.states = states
        self.hidden = bench.randn(CAPACITY, 4)
        self.out = torch.zeros_like(self.hidden)

    def pick(self, desc: Desc, warmup: bool) -> AttentionState:
        raise NotImplementedError

    def create_forward_fn(self, desc: Desc, warmup: bool) -> tuple[Any, AttentionState]:
        state = self.pick(desc, warmup)
        rows = slice(0, desc.num_reqs)

        def forward(mode: str) -> None:
            self.out[rows] = draft_layer(self.hidden[rows], state.attn_metadata["mtp.0"])

        return forward, state


class Buggy(Speculator):
    """One captured state, for warm-up and capture alike."""

    def pick(self, desc: Desc, warmup: bool) -> AttentionState:
        return self.states[desc].captured


class Fixed(Speculator):
    """The warm-up has a state of its own."""

    def pick(self, desc: Desc, warmup: bool) -> AttentionState:
        pair = self.states[desc]
        return pair.warmup if warmup else pair.captured


def check(form: type[Speculator], bench: Bench) -> None:
    runner = TargetRunner(bench)
    descs = [Desc(8, 8), Desc(4, 4), Desc(1, 1)]
    speculator = form(runner.capture(descs), bench)
    rows = descs[1].num_reqs
    bench.capture_pair(
        speculator.create_forward_fn,
        descs[1],
        persistent={"seq_lens": runner.seq_lens, "slot_mapping": runner.slot_mapping,
                    "hidden": speculator.hidden},
        outputs=lambda: speculator.out[:rows],
        vary=[
            lambda: runner.seq_lens.copy_(bench.ints(1, 40, CAPACITY)),
            lambda: speculator.hidden.copy_(bench.randn(CAPACITY, 4)),
        ],
    )
