"""After a rejected draft the recurrent state is restored in eager code, and not in a replay.

A variation on spiritbuun/buun-llama-cpp#116, whose thread ends at "each divergence follows a
rollback" and names no cause. The one built here is likely: the step asks the host whether there
was a rejection, and was captured when there was none.
"""

from __future__ import annotations

import torch

from tests.specimens.graphs.bench import Bench

WIDTH = 8


class Drafter:
    """Keeps a recurrent state, and a copy of it from before the draft."""

    def __init__(self, bench: Bench) -> None:
        self.static = {
            "token": bench.randn(WIDTH),
            "saved": bench.randn(WIDTH),
            "state": bench.randn(WIDTH),
            "rejected": bench.zeros(1, dtype=torch.bool),
        }
        self.was_rejected = False

    def verified(self, rejected: bool) -> None:
        self.was_rejected = rejected
        self.static["rejected"].fill_(rejected)

    def start(
        self, saved: torch.Tensor, state: torch.Tensor, rejected: torch.Tensor
    ) -> torch.Tensor:
        raise NotImplementedError

    def step(
        self,
        token: torch.Tensor,
        saved: torch.Tensor,
        state: torch.Tensor,
        rejected: torch.Tensor,
    ) -> torch.Tensor:
        return torch.tanh(self.start(saved, state, rejected) + token)


class Buggy(Drafter):
    """Asks the host."""

    def start(
        self, saved: torch.Tensor, state: torch.Tensor, rejected: torch.Tensor
    ) -> torch.Tensor:
        return saved if self.was_rejected else state


class Fixed(Drafter):
    """Leaves the choice to the device."""

    def start(
        self, saved: torch.Tensor, state: torch.Tensor, rejected: torch.Tensor
    ) -> torch.Tensor:
        return torch.where(rejected, saved, state)


def check(form: type[Drafter], bench: Bench) -> None:
    drafter = form(bench)
    bench.replay(
        drafter.step,
        drafter.static,
        vary=[
            lambda: drafter.static["token"].copy_(bench.randn(WIDTH)),
            lambda: drafter.verified(rejected=True),
        ],
    )
