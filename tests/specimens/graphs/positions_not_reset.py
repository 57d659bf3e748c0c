"""Before a replay some fields are padded, the positions and cache locations are not.

Stands for sgl-project/sglang#10892 and sgl-project/sglang#25529: the graph of four rows writes a
third and fourth key where the previous, larger batch had its own.
"""

from __future__ import annotations

import torch

from tests.specimens.graphs.bench import Bench

ROWS, SLOTS, WIDTH = 4, 24, 8


class GraphRunner:
    """Copies a raw batch into the captured one's buffers; location 0 is nobody's."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.static = {
            "hidden": bench.randn(ROWS, WIDTH),
            "positions": bench.ints(0, 50, ROWS),
            "out_cache_loc": bench.tensor(bench.shuffled(SLOTS - 1, 1)[:ROWS]),
            "cache": bench.randn(SLOTS, WIDTH),
        }
        self.raw_bs = ROWS

    def replay_prepare(self, raw_bs: int) -> None:
        self.raw_bs = raw_bs
        self.reset()
        free = [loc for loc in range(1, SLOTS) if loc not in self.static["out_cache_loc"].tolist()]
        self.static["positions"][:raw_bs] = self.bench.ints(0, 50, raw_bs)
        self.static["out_cache_loc"][:raw_bs] = self.bench.tensor(free[:raw_bs])

    def reset(self) -> None:
        raise NotImplementedError

    @staticmethod
    def forward(
        hidden: torch.Tensor,
        positions: torch.Tensor,
        out_cache_loc: torch.Tensor,
        cache: torch.Tensor,
    ) -> torch.Tensor:
        cache[out_cache_loc] = hidden * torch.cos(positions.float())[:, None]
        return cache[1:].clone()

    def eager(
        self,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        out_cache_loc: torch.Tensor,
        cache: torch.Tensor,
    ) -> torch.Tensor:
        live = slice(0, self.raw_bs)
        return self.forward(hidden[live], positions[live], out_cache_loc[live], cache)


class Buggy(GraphRunner):
    """Resets nothing."""

    def reset(self) -> None:
        pass


class Fixed(GraphRunner):
    """Resets what the raw batch does not fill."""

    def reset(self) -> None:
        self.static["positions"].zero_()
        self.static["out_cache_loc"].zero_()


def check(form: type[GraphRunner], bench: Bench) -> None:
    runner = form(bench)
    bench.replay(
        runner.forward,
        runner.static,
        eager=runner.eager,
        vary=[lambda: runner.replay_prepare(bench.lengths(1, 1, ROWS)[0])],
    )
