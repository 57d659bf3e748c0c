"""A draft head's guesses from every token of a text at once, several steps deep, and their loss.

EAGLE-3 calls this the training-time test: in training the head gets its own hidden states, as it
does when it drafts.

Shapes::

    B  windows      N  tokens of a window      A  anchors of a window: tokens that are guessed from
    C  hidden size  V  vocabulary              N = A + number of steps
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from sample_engine.model.eagle_head import EagleHead
from sample_engine.model.llama import Llama
from tools.training.attention import UnrolledAttend, causal_windows, window_positions

__all__ = ["Guesses", "draft_loss", "expected_tokens", "guess"]


@dataclasses.dataclass(frozen=True)
class Guesses:
    """What the model says of the windows, and what the head guesses that it says.

    At anchor ``i`` the head's step ``j`` guesses token ``i + 2 + j``; it is compared to what the
    model says at token ``i + 1 + j``.
    """

    model: Tensor  # [B, N, V] logits
    head: list[Tensor]  # of each step: [B, A, V] logits

    def pair(self, step: int) -> tuple[Tensor, Tensor]:
        """Return the logits of the model and of the head that belong together: ``[B, A, V]``."""
        anchors = self.head[step].shape[1]
        return self.model[:, 1 + step : 1 + step + anchors], self.head[step]


def guess(
    head: EagleHead,
    model: Llama,
    windows: Tensor,  # [B, N] int64
    steps: int,
) -> Guesses:
    """Return the guesses of ``steps`` steps from every anchor; gradients reach the head only."""
    batch, length = windows.shape
    with torch.no_grad():
        hidden, aux = model(
            windows.flatten(),
            window_positions(windows),
            causal_windows(batch),
            head.config.aux_layers,
        )
        said = model.compute_logits(hidden).view(batch, length, -1)
        embeddings = model.embed_tokens(windows)  # [B, N, C]
    anchors = length - steps
    aux = [feature.view(batch, length, -1)[:, :anchors].flatten(0, 1) for feature in aux]
    own = head.fuse(aux).to(embeddings.dtype)
    attend = UnrolledAttend(batch, anchors, steps, windows.device)
    positions = window_positions(windows[:, :anchors])
    guessed = []
    for step in range(steps):
        following = embeddings[:, 1 + step : 1 + step + anchors].flatten(0, 1)
        own = head(following, own, positions + step, attend)
        guessed.append(head.compute_logits(own).view(batch, anchors, -1))
    return Guesses(said, guessed)


def draft_loss(guesses: Guesses, decay: float, variation: float) -> Tensor:
    """Return the loss of the guesses, that of step ``j`` with a weight of ``decay ** j``.

    It is the cross entropy to the model's distribution, plus ``variation`` times the probability
    that a guess is refused when both sample: the total variation distance of the two.
    """

    def of_step(step: int) -> Tensor:
        said, guessed = guesses.pair(step)
        target = said.softmax(-1)
        logs = F.log_softmax(guessed, dim=-1)
        entropy = -(target * logs).sum(-1).mean()
        refused = 1 - torch.minimum(target, logs.exp()).sum(-1).mean()
        return decay**step * (entropy + variation * refused)

    return torch.stack([of_step(step) for step in range(len(guesses.head))]).sum()


def expected_tokens(guesses: Guesses, accepted: Callable[[Tensor, Tensor], Tensor]) -> float:
    """Return how many tokens a verification yields on average, from the acceptance at each step.

    ``accepted`` maps the logits of model and head to the probability of acceptance ``[B, A]``.
    """
    reached = torch.ones_like(guesses.head[0][..., 0])
    total = reached.clone()
    for step in range(len(guesses.head)):
        reached = reached * accepted(*guesses.pair(step))
        total += reached
    return float(total.mean())
