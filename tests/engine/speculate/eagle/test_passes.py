"""Where the further passes of the head are: all at once what is worked out one after the other."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sample_engine.attention.interface import PAD_SLOT_ID
from sample_engine.speculate.eagle.passes import AheadBuffers, DecodeBuffers, advance
from sample_engine.speculate.kernels import reference

DEVICE = torch.device("cpu")
PAGE, LONGEST = 4, 22
POSITIONS = [0, 2, 18, 21, 9, 5]
LENGTHS = [1, 3, 19, 22, 10, 0]  # the last request is nobody's


def placed(place_passes: Any, num_passes: int) -> tuple[DecodeBuffers, AheadBuffers, torch.Tensor]:
    """A page's end, the longest text's, a page that is not there, and a request of nobody."""
    size = len(POSITIONS)
    table = torch.arange(1, 1 + size * 6, dtype=torch.int32).view(size, 6)
    table[4, 3:] = 0  # the null block: the scheduler has given no more
    first = DecodeBuffers.make(size, 3, 5, torch.float32, DEVICE)
    ahead = AheadBuffers.make(num_passes, size + 2, DEVICE)
    tokens = torch.tensor([7, *(number for each in POSITIONS for number in (each, 99))])
    place_passes(
        tokens,
        torch.arange(1, 2 * size, 2),  # of each request its position
        torch.tensor(LENGTHS, dtype=torch.int32),
        table,
        PAGE,
        LONGEST,
        PAD_SLOT_ID,
        (first.positions, first.seq_lens, first.query_start_loc),
        (ahead.positions, ahead.seq_lens, ahead.slot_mapping),
    )
    return first, ahead, table


@pytest.mark.parametrize("num_passes", [1, 4])
def test_all_passes_at_once_are_where_one_after_the_other_is(num_passes: int) -> None:
    first, ahead, table = placed(reference.place_passes, num_passes)
    size = len(POSITIONS)
    assert first.positions.tolist() == POSITIONS
    assert first.seq_lens.tolist() == [1, 1, 1, 1, 1, 0]
    assert first.query_start_loc.tolist() == [0, 1, 2, 3, 4, 5, 5]
    assert ahead.num_passes == num_passes
    for index in range(num_passes):
        advance(first, table, PAGE, LONGEST)
        place = ahead.of(index, size)
        for name in ("positions", "seq_lens", "slot_mapping"):
            assert torch.equal(getattr(place, name), getattr(first, name)), name
    assert not ahead.positions[:, size:].any(), "rows of no request stay as they are"


@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("block", [2, 128])
@pytest.mark.parametrize("num_passes", [1, 4])
def test_the_kernel_places_them_likewise(
    monkeypatch: pytest.MonkeyPatch, num_passes: int, block: int
) -> None:
    kernels = pytest.importorskip("sample_engine.speculate.kernels.passes")
    monkeypatch.setattr(kernels, "_BLOCK", block)  # less than the requests, and more
    for found, expected in zip(
        placed(kernels.place_passes, num_passes),
        placed(reference.place_passes, num_passes),
        strict=True,
    ):
        if isinstance(found, torch.Tensor):
            continue
        for name, value in vars(found).items():
            assert torch.equal(value, getattr(expected, name)), name


@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("block", [2, 128])
def test_the_kernel_reads_the_tokens_after_those_of_a_step_and_where_certain_ones_end(
    monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    kernels = pytest.importorskip("sample_engine.speculate.kernels.passes")
    monkeypatch.setattr(kernels, "_BLOCK", block)
    texts = torch.arange(40).view(4, 10)
    args = (
        texts,
        torch.tensor([1, 1, 1, 0, 0, 3]),  # rows of the tokens; the last is nobody's
        torch.tensor([2, 3, 4, 6, 7, 0]),
        torch.tensor([0, 3, 5, 5], dtype=torch.int32),
        torch.tensor([2, 0, 0]),  # drafts
        torch.tensor([2, 0, 0]),  # one accepted; in the middle of a prompt; nobody's
    )
    for certain_ends in (reference.certain_ends, kernels.certain_ends):
        next_ids, last_tokens = certain_ends(*args)
        assert next_ids.tolist() == [13, 14, 15, 7, 8, 31]
        assert last_tokens.tolist() == [1, 4, 4]
