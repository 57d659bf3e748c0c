"""The forward lengthens the KV lengths it is given, and nobody gives it fresh ones for the capture.

Stands for NVIDIA/TensorRT-LLM#15913: lengths grow with every warm-up, the page table does not.
"""

from __future__ import annotations

from typing import Any

import torch

from tests.specimens.graphs.bench import Bench
from tests.specimens.graphs.engine import BLOCK, Desc, paged_attention

ROWS, PAGES, WIDTH = 3, 4, 8


class Runner:
    """Captures a step whose forward counts the new token itself."""

    def __init__(self, bench: Bench) -> None:
        self.dummy_lens = bench.ints(1, 6, ROWS)
        self.kv_lens = self.dummy_lens.clone()
        self.page_table = bench.tensor(bench.shuffled(ROWS * PAGES, 1)).view(ROWS, PAGES)
        self.cache = bench.randn((1 + ROWS * PAGES) * BLOCK, WIDTH)
        self.query = bench.randn(ROWS, WIDTH)

    def refresh_inputs(self) -> None:
        raise NotImplementedError

    def create_forward_fn(self, desc: Desc, warmup: bool) -> tuple[Any, dict[str, torch.Tensor]]:
        self.refresh_inputs()
        state = {"kv_lens": self.kv_lens, "page_table": self.page_table}

        def forward(mode: str) -> torch.Tensor:
            state["kv_lens"].add_(1)
            return paged_attention(self.query, self.cache, state["page_table"], state["kv_lens"])

        return forward, state


class Buggy(Runner):
    """The inputs were filled once, before the warm-up."""

    def refresh_inputs(self) -> None:
        pass


class Fixed(Runner):
    """Every pass begins with the same inputs."""

    def refresh_inputs(self) -> None:
        self.kv_lens.copy_(self.dummy_lens)


def check(form: type[Runner], bench: Bench) -> None:
    runner = form(bench)

    def new_lens() -> None:
        runner.dummy_lens.copy_(bench.ints(1, 12, ROWS))
        runner.kv_lens.copy_(runner.dummy_lens)

    def belongs(state: dict[str, torch.Tensor], desc: Desc) -> None:
        lens = state["kv_lens"]
        assert torch.equal(lens, runner.dummy_lens), f"kv_lens are {lens.tolist()}"

    bench.capture_pair(
        runner.create_forward_fn,
        Desc(ROWS, ROWS),
        persistent={"kv_lens": runner.kv_lens, "page_table": runner.page_table,
                    "query": runner.query},
        belongs=belongs,
        vary=[new_lens],
    )
