"""What is noted of storages: places, and that those which are gone are forgotten."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from pytest_cudafork.capture.stand_ins.tensors.storages import (  # noqa: E402
    Storages,
    storage_of,
)


def test_views_lie_where_their_memory_does() -> None:
    known, there, here, unknown = Storages(), torch.ones(2), torch.ones(2), torch.ones(2)
    known.note_gpu([there, {"x": (there,)}], 3)
    known.note_hosts([here, there])
    assert [known.index_of(each) for each in (there[:1], here, unknown)] == [3, None, None]
    places = [known.lies_on_host(each) for each in (there.view(2, 1), here[1:], unknown)]
    assert places == [False, True, None]
    assert known.is_number_of_host(here[0])
    assert not known.is_number_of_host(here)
    assert not known.is_number_of_host(there[0])


def test_a_parameter_that_a_lazy_module_has_not_made_lies_somewhere() -> None:
    known, lazy = Storages(), torch.nn.LazyLinear(2).weight
    assert known.index_of(lazy) is None
    known.note_hosts(lazy)
    assert known.lies_on_host(lazy)
    assert not known.is_number_of_host(lazy)
    there = torch.nn.LazyLinear(2).weight
    known.note_gpu(there, 1)
    assert known.index_of(there) == 1


def test_memory_of_the_host_stays_there() -> None:
    known, here, pinned = Storages(), torch.ones(2), torch.ones(2)
    known.note_hosts(here)
    known.note_pinned(pinned.untyped_storage())
    known.note_gpu([here, pinned[:1]], 0)
    assert (known.index_of(here), known.index_of(pinned)) == (None, None)


def test_pinned_memory_lies_on_the_host() -> None:
    known, pinned = Storages(), torch.ones(2)
    assert not known.is_pinned(pinned)
    known.note_pinned(pinned.untyped_storage())
    assert known.is_pinned(pinned[1:])
    assert known.lies_on_host(pinned)


def test_memory_that_is_gone_is_forgotten() -> None:
    known, kept = Storages(), torch.ones(1)
    known.note_gpu(kept, 0)
    for _ in range(3 * 4096):
        known.note_gpu(torch.ones(1), 0)
    assert len(known.on_gpu) <= 2 * 4096
    for _ in range(3 * 4096):
        made = torch.tensor(1.0)
        known.note_hosts(made)
        known.note_pinned(made.untyped_storage())
    assert max(len(known.on_host), len(known.pinned)) <= 2 * 4096
    assert known.index_of(kept) == 0


def test_the_address_of_memory_that_is_gone_is_given_to_none_that_lies_elsewhere() -> None:
    known = Storages()
    for _ in range(100):
        known.note_gpu(torch.ones(1), 0)
        assert known.index_of(torch.ones(1)) is None


def test_the_memory_of_tensors_that_have_some() -> None:
    x = torch.ones(1)
    assert storage_of(torch.ones(1).to_sparse()) is None
    assert storage_of(x).data_ptr() == x.data_ptr()
