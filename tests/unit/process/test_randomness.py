"""Tests of the random numbers that forked children have; here the "child" is this process."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Iterator

import pytest

from pytest_cudafork.process.randomness import Randomness

needs_numpy = pytest.mark.skipif(
    importlib.util.find_spec("numpy") is None, reason="numpy is not installed"
)


@pytest.fixture(autouse=True)
def _the_state_is_put_back() -> Iterator[None]:
    state = random.getstate()
    yield
    random.setstate(state)


def _numbers_of_two_children(randomness: Randomness) -> tuple[float, float]:
    """Draw a number as two children would, whom Python gives a new seed each after their fork."""
    drawn = []
    for _ in range(2):
        random.seed()  # what Python does in a forked child
        randomness.renew()
        drawn.append(random.random())
    return drawn[0], drawn[1]


def test_what_the_users_code_has_seeded_goes_on_from_there_in_every_child() -> None:
    randomness = Randomness()
    random.seed(5)
    expected = random.Random(5).random()
    randomness.look()
    assert _numbers_of_two_children(randomness) == (expected, expected)


def test_without_a_seed_children_differ() -> None:
    randomness = Randomness()
    randomness.look()
    first, second = _numbers_of_two_children(randomness)
    assert first != second


def test_a_seed_that_another_process_saw_counts_as_the_start() -> None:
    random.seed(5)
    randomness = Randomness(random.getstate())
    randomness.look()
    first, second = _numbers_of_two_children(randomness)
    assert first != second


@needs_numpy
@pytest.mark.parametrize("seeded", [True, False])
def test_numpys_generator_is_renewed_only_where_nobody_seeded_it(
    seeded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy.random

    from pytest_cudafork.compat import numpy_internals

    monkeypatch.setattr(numpy_internals, "is_global_generator_unseeded", lambda: not seeded)
    state = numpy.random.get_state()
    try:
        numpy.random.seed(7)
        expected = float(numpy.random.RandomState(7).random())
        randomness = Randomness()
        randomness.look()
        randomness.renew()
        assert (float(numpy.random.random()) == expected) == seeded
    finally:
        numpy.random.set_state(state)
