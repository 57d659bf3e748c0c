"""The properties of GPUs that are not there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_cudafork.observe.driver import native_libs
from pytest_cudafork.observe.torch.devices import empty_memory_stats, properties_of, uuid_of

C_TABLE = Path(native_libs.__file__).parent / "native" / "phantom_face.c"


@pytest.mark.parametrize(
    ("capability", "name"),
    [
        ((5, 2), "NVIDIA V100-SXM2-32GB"),
        ((7, 0), "NVIDIA V100-SXM2-32GB"),
        ((8, 7), "NVIDIA A10"),
        ((9, 0), "NVIDIA H100 80GB HBM3"),
        ((10, 0), "NVIDIA B200"),
        ((99, 0), "NVIDIA RTX PRO 6000 Blackwell"),
    ],
)
def test_a_card_is_the_last_that_is_not_above_the_capability(
    capability: tuple[int, int], name: str
) -> None:
    made = properties_of(capability)
    assert made.name == name
    assert (made.major, made.minor) == capability


def test_sizes_are_in_bytes() -> None:
    made = properties_of((9, 0))
    assert made.total_memory == 80 << 30
    assert made.L2_cache_size == 50 << 20
    assert made.shared_memory_per_multiprocessor == 228 << 10


@pytest.mark.parametrize("capability", [(7, 0), (7, 5), (8, 0), (9, 0), (10, 0), (12, 0)])
def test_the_phantom_driver_has_the_same_cards(capability: tuple[int, int]) -> None:
    made = properties_of(capability)
    rows = C_TABLE.read_text(encoding="utf-8")
    row = re.search(rf'[^\n]*"{re.escape(made.name.removeprefix("NVIDIA "))}"[^\n]*', rows)
    assert row is not None, f"{C_TABLE} has no {made.name}"
    assert re.search(rf"\b{made.multi_processor_count}\b", row[0])


def test_each_device_has_a_name_of_its_own() -> None:
    assert len({uuid_of(number) for number in range(16)}) == 16
    assert bytes.fromhex(uuid_of(0).removeprefix("GPU-").replace("-", ""))[:8] == b"cudafork"


def test_an_allocator_that_was_never_asked_counts_nothing() -> None:
    stats = empty_memory_stats()
    assert stats["active_bytes"]["large_pool"] == {
        "current": 0, "peak": 0, "allocated": 0, "freed": 0,
    }  # fmt: skip
    assert (stats["num_ooms"], stats["max_split_size"]) == (0, -1)
