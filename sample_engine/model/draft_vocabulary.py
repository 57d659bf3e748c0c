"""Which tokens a draft head can guess, as EAGLE-3's weights say it: ``d2t`` and ``t2d``.

``d2t`` has for each row of the head's output layer how far its token lies behind that row: row
``i`` is the token ``i + d2t[i]``. ``t2d`` says of each token whether it is one of them; it serves
training and need not be there.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from sample_engine.errors import WeightsError
from sample_engine.model.weight_files import opened

__all__ = ["D2T", "T2D", "draft_token_ids", "spread_token_ids"]

D2T, T2D = "d2t", "t2d"


def draft_token_ids(
    path: Path,
    size: int,
    vocab_size: int,
) -> Tensor:  # [size] int64, ascending
    """Return the tokens of a head's draft vocabulary, from its weights file.

    Raises :class:`WeightsError` where the file does not say it, or not as it must be.
    """
    with opened(path) as files:
        for name, shape, kinds in (
            (D2T, (size,), ("I64", "I32")),
            (T2D, (vocab_size,), ("BOOL", "U8", "I64")),
        ):
            found = files.found.get(name)
            if found is None and name == T2D:
                continue
            if found is None or found.shape != shape or found.dtype not in kinds:
                what = "nothing" if found is None else f"{list(found.shape)} of {found.dtype}"
                raise WeightsError(
                    f"{str(path)!r} has a draft vocabulary of {size} tokens, so {name} must be "
                    f"{list(shape)} of {' or '.join(kinds)}; it is {what}. Save the head anew."
                )
        token_ids = torch.arange(size) + files.tensor(D2T).to(torch.int64)
        least, most = (int(end) for end in torch.aminmax(token_ids))
        if least < 0 or most >= vocab_size or bool((token_ids.diff() <= 0).any()):
            raise WeightsError(
                f"{D2T} in {str(path)!r} must give each of {size} rows a token of its own, in "
                f"ascending order, of the {vocab_size} that there are; it gives tokens from "
                f"{least} to {most}. Is the head of another model?"
            )
        if T2D in files.found:
            there = files.tensor(T2D).to(torch.bool)
            if not torch.equal(there.nonzero().flatten(), token_ids):
                raise WeightsError(
                    f"{T2D} in {str(path)!r} names other tokens than {D2T} does: one of the two is "
                    "damaged. Save the head anew."
                )
    return token_ids


def spread_token_ids(size: int, vocab_size: int) -> Tensor:  # [size] int64, ascending
    """Return a draft vocabulary for random weights: tokens at even distances."""
    return torch.arange(size) * vocab_size // size
