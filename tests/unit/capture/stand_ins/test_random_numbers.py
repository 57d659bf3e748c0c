"""Random numbers of stand-ins for tensors on a GPU, and what seeds them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from pytest_cudafork.capture.stand_ins.random_numbers import put_in_place  # noqa: E402
from pytest_cudafork.observe.base.undo import UndoStack  # noqa: E402

CUDA = torch.cuda


@pytest.fixture(autouse=True)
def in_place() -> Iterator[None]:
    before = torch.get_rng_state()
    with UndoStack() as undo:
        put_in_place(undo)
        yield
    torch.set_rng_state(before)


@pytest.mark.parametrize("seed", [CUDA.random, CUDA], ids=["torch.cuda.random", "torch.cuda"])
@pytest.mark.parametrize("name", ["manual_seed", "manual_seed_all"])
def test_a_seed_is_that_of_the_numbers(seed: Any, name: str) -> None:
    getattr(seed, name)(7)
    first = torch.rand(2)
    getattr(seed, name)(7)
    assert torch.rand(2).tolist() == first.tolist()
    assert CUDA.initial_seed() == 7


def _of_one() -> Callable[[], None]:
    state = CUDA.get_rng_state("cuda:0")
    return lambda: CUDA.set_rng_state(state, "cuda:0")


def _of_all() -> Callable[[], None]:
    states = CUDA.get_rng_state_all()
    return lambda: CUDA.set_rng_state_all(states)


def _of_a_generator() -> Callable[[], None]:
    generator = CUDA.default_generators[0]
    state = generator.get_state()
    return lambda: generator.set_state(state)


@pytest.mark.parametrize("kept", [_of_one, _of_all, _of_a_generator])
def test_a_state_that_was_kept_gives_the_same_numbers_again(kept: Any) -> None:
    back = kept()
    first = torch.rand(2)
    back()
    assert torch.rand(2).tolist() == first.tolist()


@pytest.mark.parametrize("name", ["seed", "seed_all"])
def test_a_seed_of_its_own_choice_is_another_one(name: str) -> None:
    CUDA.manual_seed(7)
    first = torch.rand(2)
    getattr(CUDA, name)()
    assert torch.rand(2).tolist() != first.tolist()
    assert CUDA.initial_seed() != 7
