"""Before a replay the page table is refreshed, the plan is not.

Stands for alibaba/rtp-llm#378 and alibaba/rtp-llm#1084: FlashInfer's plan has to be made again for
the new lengths, into the buffers the graph reads.
"""

from __future__ import annotations

import torch

from tests.specimens.graphs.bench import Bench
from tests.specimens.graphs.engine import BLOCK, paged_attention

ROWS, PAGES, WIDTH = 4, 3, 8


class Decoder:
    """Attends with a wrapper in FlashInfer's manner: ``plan`` on the host, then ``run``."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.cache = bench.randn((1 + ROWS * PAGES) * BLOCK, WIDTH)
        self.static = {
            "query": bench.randn(ROWS, WIDTH),
            "page_table": bench.zeros(ROWS, PAGES, dtype=torch.int64),
            "planned_lens": bench.zeros(ROWS, dtype=torch.int64),
        }
        self.lens = [1] * ROWS
        self.refresh_pages()
        self.plan()

    def plan(self) -> None:
        self.static["planned_lens"].copy_(self.bench.tensor(self.lens))

    def refresh_pages(self) -> None:
        pages = self.bench.shuffled(ROWS * PAGES, start=1)
        self.static["page_table"].copy_(self.bench.tensor(pages).view(ROWS, PAGES))

    def prepare(self, lens: list[int]) -> None:
        """Make ready for the replay of a step with these lengths."""
        raise NotImplementedError

    def run(
        self, query: torch.Tensor, page_table: torch.Tensor, planned_lens: torch.Tensor
    ) -> torch.Tensor:
        return paged_attention(query, self.cache, page_table, planned_lens)

    def eager(self) -> torch.Tensor:
        """Run a step as without graphs: it is planned first."""
        self.plan()
        return self.run(**self.static)


class Buggy(Decoder):
    """Refreshes the page table alone."""

    def prepare(self, lens: list[int]) -> None:
        self.lens = lens
        self.refresh_pages()


class Fixed(Decoder):
    """Plans before the replay."""

    def prepare(self, lens: list[int]) -> None:
        self.lens = lens
        self.refresh_pages()
        self.plan()


def check(form: type[Decoder], bench: Bench) -> None:
    decoder = form(bench)
    bench.replay(
        decoder.run,
        decoder.static,
        eager=decoder.eager,
        vary=[
            lambda: decoder.prepare(bench.lengths(ROWS, 5, BLOCK * PAGES)),
            lambda: decoder.prepare(bench.lengths(ROWS, 2, BLOCK * PAGES)),
        ],
    )
