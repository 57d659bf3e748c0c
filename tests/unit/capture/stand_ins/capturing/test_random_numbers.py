"""Random numbers of stand-ins for tensors on a GPU, and what seeds them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from pytest_cudafork.capture.stand_ins.capturing.random_numbers import Generator, put_in_place  # noqa: E402
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


def test_a_generator_of_its_own_says_where_it_is_and_draws_the_numbers_of_its_seed() -> None:
    made = Generator("cuda:1")
    assert isinstance(made, torch.Generator)
    assert (made.device.type, made.device.index, Generator().device.index) == ("cuda", 1, 0)
    made.manual_seed(3)
    same, copied = made.clone_state(), pickle.loads(pickle.dumps(made))
    drawn = [torch.rand(2, generator=each).tolist() for each in (made, same, copied)]
    assert drawn[0] == drawn[1] == drawn[2]
    assert same.device == copied.device == made.device
    assert torch.rand(2, generator=torch.Generator().manual_seed(3)).tolist() == drawn[0]
