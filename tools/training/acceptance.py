"""How many of a draft head's guesses a model accepts, on texts that the model wrote itself.

Both rules are exact: greedily a guess is accepted where it is the model's next token; in sampling,
given that the next token is ``t``, with probability ``min(1, head(t) / model(t))`` (Leviathan et
al., 2023). No engine is needed: the texts are written already, and are walked over.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from sample_engine.model.eagle_head import EagleHead
from sample_engine.model.llama import Llama
from sample_engine.tokenizers.byte_tokenizer import ByteTokenizer
from tools.training.unroll import guess

__all__ = ["Acceptance", "acceptances", "walk"]


@dataclasses.dataclass(frozen=True)
class Acceptance:
    """What drafting ``k`` tokens at a time comes to."""

    tokens_per_step: float
    by_position: list[float]  # acceptance at each position, given that it was reached


def acceptances(
    head: EagleHead,
    model: Llama,
    texts: Tensor,  # [B, N] int64, the model's own from ``prompt`` on
    prompt: int,
    temperature: float,
    generator: torch.Generator,  # of the CPU
    max_steps: int = 5,
) -> dict[int, Acceptance]:
    """Return the acceptance for drafts of 1 to ``max_steps`` tokens."""
    pieces = [
        _accepted(head, model, piece, temperature, max_steps, generator) for piece in texts.split(8)
    ]
    accepted = torch.cat(pieces)
    ends = _ends(texts.cpu(), prompt)
    return {drafts: walk(accepted, ends, prompt, drafts) for drafts in range(1, max_steps + 1)}


def _accepted(
    head: EagleHead,
    model: Llama,
    texts: Tensor,  # [B, N]
    temperature: float,
    steps: int,
    generator: torch.Generator,
) -> Tensor:
    """Return whether each guess is accepted: ``[B, A, steps]`` bool, on the CPU."""
    with torch.no_grad():
        guesses = guess(head, model, texts, steps)
    columns = []
    for step in range(steps):
        said, guessed = guesses.pair(step)
        following = texts[:, 2 + step :]  # one anchor has no following token in its last step
        following = torch.nn.functional.pad(following, (0, 1))[:, : said.shape[1]]
        if temperature == 0:
            columns.append((guessed.argmax(-1) == following).cpu())
            continue
        both = torch.stack((said, guessed)).div(temperature).log_softmax(-1)
        index = following.expand(2, -1, -1)[..., None]
        model_log, head_log = both.gather(-1, index)[..., 0].cpu()
        draw = torch.rand(head_log.shape, generator=generator)
        columns.append(draw < (head_log - model_log).exp())
    return torch.stack(columns, dim=-1)


def _ends(
    texts: Tensor,  # [B, N]
    prompt: int,
) -> list[int]:
    """Return where each text ends: at its first end-of-text token after the prompt."""
    ends = []
    for row in texts.tolist():
        tail = row[prompt:]
        stop = ByteTokenizer.eos_token_id
        ends.append(prompt + tail.index(stop) + 1 if stop in tail else len(row))
    return ends


def walk(
    accepted: Tensor,  # [B, A, steps] bool
    ends: list[int],
    prompt: int,
    drafts: int,
) -> Acceptance:
    """Go through the texts as an engine would that drafts ``drafts`` tokens in each step."""
    rounds = tokens = 0
    reached, held = [0] * drafts, [0] * drafts
    for rows, end in zip(accepted.tolist(), ends, strict=True):
        newest = prompt  # the last token that is known; the prefill yielded it
        # All drafts are compared over the same tokens: to where the longest one still fits.
        while newest + len(rows[0]) < end:
            count = 0
            for step in range(drafts):
                reached[step] += 1
                if not rows[newest - 1][step]:
                    break
                held[step] += 1
                count += 1
            rounds += 1
            tokens += count + 1
            newest += count + 1
    rates = [kept / max(1, tried) for kept, tried in zip(held, reached, strict=True)]
    return Acceptance(tokens / max(1, rounds), rates)
