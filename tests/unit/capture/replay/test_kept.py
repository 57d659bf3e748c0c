"""What a graph reads of the warm-up's results, and which inputs these were computed from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.replay.kept import (  # noqa: E402
    handed_over,
    inputs_behind,
    read_from_before,
)
from pytest_cudafork.capture.software.backend import SoftwareBackend  # noqa: E402

BACKEND = SoftwareBackend()


def both(fn: Callable[[], Any], again: Callable[[], Any] | None = None) -> tuple[Any, Any]:
    """Record a warm-up, and capture."""
    warm = BACKEND.record(fn)
    return warm, BACKEND.capture(again or fn).recording


def names(warm: Any, captured: Any) -> list[str]:
    return [one.work.name.partition("::")[2] for one in handed_over(warm, captured)]


def test_a_result_that_the_graph_only_reads_is_handed_over() -> None:
    x = torch.ones(4)
    kept: list[Any] = []

    def fn() -> Any:
        if not kept:
            kept.append(x.cos().sin())
        return x + kept[0]

    warm, captured = both(fn)
    found = handed_over(warm, captured)
    assert [one.work.name for one in found] == ["aten::sin"], "cos was for the moment"
    assert [paths for _, paths in inputs_behind(warm, found, {"x": x})] == [["x"]]
    assert inputs_behind(warm, found, {"y": torch.ones(4)}) == []


def test_an_input_where_freed_memory_was_is_not_what_was_read() -> None:
    """Torch's allocator gives an address again at once."""
    x, kept = torch.ones(4), torch.zeros(4)
    warm, captured = both(lambda: kept.copy_(x.cos()), lambda: kept + 1)
    (freed,) = [one for work in warm.work for one in work.writes if one.find() is None]
    later = torch.frombuffer(bytearray(16), dtype=torch.float32)
    at = freed._replace(pointer=later.data_ptr())

    def moved(region: Any) -> Any:
        return at if region.storage == freed.storage else region

    work = tuple(one._replace(reads=tuple(map(moved, one.reads))) for one in warm.work)
    warm = dataclasses.replace(warm, work=work)
    found = handed_over(warm, captured)
    assert [one.work.name for one in found] == ["aten::copy_"]
    assert inputs_behind(warm, found, {"later": later}) == []


def test_memory_that_is_gone_is_nobodys() -> None:
    warm, captured = both(lambda: torch.ones(1 << 20).cos().sum())
    assert names(warm, captured) == []


def test_what_the_graph_writes_itself_is_its_own() -> None:
    x, state = torch.ones(4), torch.zeros(4)
    assert names(*both(lambda: state.add_(x))) == []
    assert names(*both(lambda: state.copy_(x) * 2)) == []


def test_parts_of_one_buffer_are_told_apart() -> None:
    x, arena = torch.ones(4), torch.zeros(8)
    done: list[Any] = []

    def fn() -> Any:
        if not done:
            done.append(arena[:4].copy_(x))
        arena[4:].copy_(x)
        return arena[:4] + arena[4:]

    warm, captured = both(fn)
    (one,) = handed_over(warm, captured)
    assert (one.region.end - one.region.first, one.region.tensor) == (16, "float32[4]")


def test_another_slot_of_a_cache_is_no_result_that_is_kept() -> None:
    x, cache, position = torch.ones(4), torch.zeros(8, 4), [0]

    def fn() -> Any:
        position[0] += 1
        cache[position[0]] = x
        return cache.sum()

    assert names(*both(fn)) == []


def test_memory_that_is_read_before_it_is_written() -> None:
    x, out, total = torch.ones(4), torch.zeros(4), torch.zeros(4)

    def fn() -> Any:
        out.copy_(x)
        total.add_(out)
        return out + total

    recording = BACKEND.record(fn)
    read = read_from_before(recording)
    assert read is not None
    assert {x.data_ptr(), total.data_ptr()} <= read
    assert out.data_ptr() not in read
    part = BACKEND.record(lambda: (out[:2].copy_(x[:2]), out.sum()))
    assert out.data_ptr() in (read_from_before(part) or ()), "the rest was there before"


def test_a_kernel_of_which_nothing_is_known_writes_no_input() -> None:
    x, buffer = torch.ones(4), torch.zeros(4)
    warm, captured = both(lambda: buffer.copy_(x), lambda: x + buffer)
    (work,) = warm.work
    both_ways = work._replace(reads=work.reads + work.writes, writes=work.reads + work.writes)
    import dataclasses

    launch = dataclasses.replace(warm, work=(both_ways._replace(exact=False),))
    found = inputs_behind(launch, handed_over(launch, captured), {"x": x})
    assert [one.region.pointer for one, _ in found] == [buffer.data_ptr()]


def test_nothing_is_said_of_work_that_is_not_known() -> None:
    import dataclasses

    warm, captured = both(lambda: torch.ones(4).cos())
    assert handed_over(warm, dataclasses.replace(captured, work=None)) == []
