"""Isolated tests with pytest-randomly."""

from __future__ import annotations

from pathlib import Path

from tests.support.isolation import METHODS
from tests.support.isolation_plugins import FORKS, same

RANDOM = """
    import random
    import pytest

    @pytest.mark.parametrize("i", range(5))
    def test_random(i, record_property):
        record_property("random", random.random())

    class TestClass:
        def test_a(self, record_property):
            record_property("random", random.randrange(10**9))
        def test_b(self):
            assert random.random() > 2
"""


def test_order_and_seeds_of_randomly_are_the_same(tmp_path: Path) -> None:
    same(tmp_path, METHODS, ["randomly"], {"test_it.py": RANDOM}, "--randomly-seed=7")


def test_the_last_seed_of_randomly_is_kept(tmp_path: Path) -> None:
    runs = ("--randomly-seed=7", "--randomly-seed=last --lf")
    same(tmp_path, FORKS, ["randomly"], {"test_it.py": RANDOM}, *runs)
