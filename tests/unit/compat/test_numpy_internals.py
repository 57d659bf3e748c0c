"""The names of numpy, which tell whether somebody has seeded the global generator."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from pytest_cudafork.compat import numpy_internals
from tests.unit.compat import require


def test_numpy_still_has_the_names_and_a_seed_shows() -> None:
    numpy = pytest.importorskip("numpy")
    needed_for = "random numbers that differ from child to child"
    require("numpy", numpy.random.mtrand, "_rand._bit_generator.seed_seq", needed_for)
    script = (
        "import numpy.random\n"
        "from pytest_cudafork.compat.numpy_internals import is_global_generator_unseeded as ask\n"
        "before = ask()\n"
        "numpy.random.seed(1)\n"
        "print(before, ask())\n"
    )
    command = [sys.executable, "-c", script]
    told = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert told == "True False\n"


@pytest.mark.parametrize("seed_sequence", [None, "of the system"])
def test_a_generator_without_a_seed_sequence_was_seeded(
    seed_sequence: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = SimpleNamespace(_bit_generator=SimpleNamespace(seed_seq=seed_sequence))
    module = SimpleNamespace(_rand=generator)
    monkeypatch.setitem(sys.modules, "numpy.random.mtrand", module)
    assert numpy_internals.is_global_generator_unseeded() == (seed_sequence is not None)


def test_numpy_that_was_not_imported_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy.random.mtrand", None)
    assert not numpy_internals.is_global_generator_unseeded()
