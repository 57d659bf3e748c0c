"""Storages by identity, and the parts of them that tensors cover."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.record.memory import Memories, part_of  # noqa: E402


def known(memories: Memories, tensor: Any) -> Any:
    found = memories.of(tensor)
    assert found is not None
    return found


def test_a_part_is_seen_again_in_other_memory() -> None:
    tensor = torch.arange(12).view(3, 4)
    part = part_of(tensor[1:, 1])
    assert part.view(tensor.untyped_storage(), "cpu").tolist() == [5, 9]
    assert part.span() == (5 * 8, 10 * 8)
    assert part_of(tensor[1:1]).span() == (32, 32)
    complex_ones = torch.ones(2, dtype=torch.complex64) * 1j
    seen = part_of(complex_ones.conj()).view(complex_ones.untyped_storage(), "cpu")
    assert seen.tolist() == [-1j, -1j]
    negative = complex_ones.conj().imag
    assert negative.is_neg()
    seen = part_of(negative).view(complex_ones.untyped_storage(), "cpu")
    assert seen.tolist() == [-1, -1]


def test_an_element_that_is_seen_several_times_is_one() -> None:
    row = torch.zeros(6)
    assert part_of(row.expand(4, 6)).elements() == 6
    assert part_of(row.unfold(0, 3, 1)).elements() == 6
    assert part_of(row[::2]).elements() == 3
    assert part_of(row[:0].expand(4, 0)).elements() == 0
    assert part_of(row[0]).elements() == 1


def test_parts_overlap_where_they_share_bytes() -> None:
    row, column = torch.zeros(4, 4)[1], torch.zeros(4, 4)[:, 1]
    assert part_of(row).overlaps(part_of(column))
    assert not part_of(row[:2]).overlaps(part_of(row[2:]))


def test_memory_is_known_by_its_storage_and_forgotten_with_it() -> None:
    memories, tensor = Memories(), torch.zeros(2, 3)
    memory = known(memories, tensor[1])
    assert known(memories, tensor) is memory
    assert memories.get(torch.zeros(1)) is None
    assert memory.text == "float32[3]"
    assert memory.bytes().numel() == 24
    before = memory.checksum()
    tensor.numpy()[0, 0] = 1
    assert memory.checksum() != before
    del tensor
    assert memory.refer() is None
    assert memory.checksum() == 0
    assert not memories.known


def test_what_has_no_memory_is_not_followed() -> None:
    memories = Memories()
    for tensor in (torch.eye(2).to_sparse(), torch.zeros(2, device="meta")):
        assert memories.of(tensor) is None
        assert memories.get(tensor) is None


def test_memory_that_was_made_smaller_has_lost_what_it_held() -> None:
    memories, tensor = Memories(), torch.zeros(4)
    memory = known(memories, tensor)
    storage = tensor.untyped_storage()
    storage.resize_(32)
    assert memory.held() is not None
    assert memory.nbytes == 32
    storage.resize_(0)
    assert memory.held() is None
    assert memory.checksum() == 0
    storage.resize_(32)
    assert memory.held() is not None
