"""Isolated tests: seeds and random numbers, in one process or many."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.support.isolation import METHODS
from tests.support.isolation_notes import run_noting
from tests.support.isolation_plugins import FORKS
from tests.support.sessions import needs_torch

PRINT_RANDOM = """
    import random
    import pytest
    from tool import note

    @pytest.mark.parametrize("i", range(3))
    def test_random(i):
        note(random.random())
"""


@pytest.mark.parametrize("method", METHODS)
def test_random_numbers_differ_between_tests_that_nobody_seeded(
    tmp_path: Path, method: str
) -> None:
    noted = run_noting(tmp_path, method, {"test_it.py": PRINT_RANDOM})
    assert len(set(noted)) == 3


@pytest.mark.parametrize("where", ["conftest.py", "test_it.py"])
@pytest.mark.parametrize("method", METHODS)
def test_a_seed_of_the_users_holds_in_every_process(
    tmp_path: Path, method: str, where: str
) -> None:
    seed = "\n    import random\n    random.seed(5)\n"
    files = {"test_it.py": PRINT_RANDOM, "conftest.py": ""}
    files[where] = seed + files[where]
    noted = run_noting(tmp_path, method, files, "-k", "0")
    (alone,) = noted
    noted = run_noting(tmp_path, method, files)
    assert noted == [alone] * 3


@pytest.mark.skipif(importlib.util.find_spec("numpy") is None, reason="numpy is not installed")
@pytest.mark.parametrize(("seed", "different"), [("", 3), ("numpy.random.seed(5)", 1)])
@pytest.mark.parametrize("method", FORKS)
def test_the_same_holds_for_numpy(tmp_path: Path, method: str, seed: str, different: int) -> None:
    source = f"""
        import numpy
        import pytest
        from tool import note
        {seed}

        @pytest.mark.parametrize("i", range(3))
        def test_random(i):
            note(float(numpy.random.random()))
    """
    noted = run_noting(tmp_path, method, {"test_it.py": source})
    assert len(set(noted)) == different


@needs_torch
@pytest.mark.parametrize("method", FORKS)
@pytest.mark.parametrize("seed", ["", "torch.manual_seed(7)"])
def test_every_test_begins_with_the_seed_that_torch_had(
    tmp_path: Path, method: str, seed: str
) -> None:
    source = f"""
        import pytest
        import torch
        from tool import note
        {seed}

        @pytest.mark.parametrize("i", range(2))
        def test_random(i):
            note([torch.initial_seed(), float(torch.rand(1))])
    """
    noted = run_noting(tmp_path, method, {"test_it.py": source})
    first, second = noted
    assert first == second
    assert not seed or first[0] == 7
