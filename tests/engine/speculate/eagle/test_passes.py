"""Where the further passes of the head are: all at once what is worked out one after the other."""

from __future__ import annotations

import pytest
import torch

from sample_engine.speculate.eagle.passes import AheadBuffers, DecodeBuffers, advance, look_ahead

DEVICE = torch.device("cpu")
PAGE, LONGEST = 4, 22


@pytest.mark.parametrize("num_passes", [1, 4])
def test_all_passes_at_once_are_where_one_after_the_other_is(num_passes: int) -> None:
    """A page's end, the longest text's, a page that is not there, and a request of nobody."""
    positions, lengths = [0, 2, 18, 21, 9, 5], [1, 1, 1, 1, 1, 0]
    size = len(positions)
    table = torch.arange(1, 1 + size * 6, dtype=torch.int32).view(size, 6)
    table[4, 3:] = 0  # the null block: the scheduler has given no more
    buffers = DecodeBuffers.make(size, 3, 5, torch.float32, DEVICE)
    first = DecodeBuffers.make(size, 3, 5, torch.float32, DEVICE)
    for each in (buffers, first):
        each.positions.copy_(torch.tensor(positions))
        each.seq_lens.copy_(torch.tensor(lengths))
    ahead = AheadBuffers.make(num_passes, size + 2, DEVICE)
    look_ahead(ahead, first, table, PAGE, LONGEST)
    passes = ahead.passes(first)
    assert len(passes) == num_passes
    for each in passes:
        advance(buffers, table, PAGE, LONGEST)
        for name in ("positions", "seq_lens", "slot_mapping"):
            assert torch.equal(getattr(each, name), getattr(buffers, name)), name
        assert each.hidden is first.hidden, "what a pass leaves, the next one reads"
    assert first.positions.tolist() == positions
    assert not ahead.positions[:, size:].any(), "rows of no request stay as they are"
