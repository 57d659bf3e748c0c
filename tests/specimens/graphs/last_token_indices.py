"""The index of each request's last token is not padded: stale rows write over other tokens.

Stands for vllm-project/vllm#39773: EAGLE puts the sampled tokens at ``last_token_indices``, and the
graph does so for all rows it was captured with.
"""

from __future__ import annotations

import torch

from tests.specimens.graphs.bench import Bench

ROWS, TOKENS = 4, 12
NOBODY = TOKENS  # the last place of the buffer belongs to no token


class Speculator:
    """Shifts the tokens of the target by one, for the drafter."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.static = {
            "input_ids": bench.ints(1, 100, TOKENS + 1),
            "last_token_indices": bench.tensor([2, 5, 8, 11]),
            "next_tokens": bench.ints(100, 200, ROWS),
        }
        self.num_reqs = ROWS

    def prepare(self, lens: list[int]) -> None:
        self.num_reqs = len(lens)
        last = self.bench.tensor(lens).cumsum(0) - 1
        self.static["last_token_indices"][: self.num_reqs] = last
        self.pad()
        self.static["input_ids"].copy_(self.bench.ints(1, 100, TOKENS + 1))
        self.static["next_tokens"].copy_(self.bench.ints(100, 200, ROWS))

    def pad(self) -> None:
        raise NotImplementedError

    @staticmethod
    def shift(
        input_ids: torch.Tensor, last_token_indices: torch.Tensor, next_tokens: torch.Tensor
    ) -> torch.Tensor:
        shifted = torch.roll(input_ids, -1)
        shifted[last_token_indices] = next_tokens
        return shifted[:NOBODY] * 1

    def eager(
        self, input_ids: torch.Tensor, last_token_indices: torch.Tensor, next_tokens: torch.Tensor
    ) -> torch.Tensor:
        live = slice(0, self.num_reqs)
        return self.shift(input_ids, last_token_indices[live], next_tokens[live])


class Buggy(Speculator):
    """Leaves the rows behind the batch as they were."""

    def pad(self) -> None:
        pass


class Fixed(Speculator):
    """They point to nobody's place."""

    def pad(self) -> None:
        self.static["last_token_indices"][self.num_reqs :] = NOBODY


def check(form: type[Speculator], bench: Bench) -> None:
    speculator = form(bench)

    def new_batch() -> None:
        first = bench.lengths(1, 6, 8)[0]
        speculator.prepare([first, 11 - first])  # the third index is 8, within the second request

    bench.replay(
        speculator.shift,
        speculator.static,
        eager=speculator.eager,
        vary=[new_batch],
    )
