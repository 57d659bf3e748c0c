"""Tests of the package itself: its names are looked up when they are used."""

from __future__ import annotations

import importlib.util
import sys

import pytest

import pytest_cudafork

NEEDS_TORCH = {"assert_replay_equals_eager"}


@pytest.mark.parametrize("name", pytest_cudafork.__all__)
def test_a_public_name_is_found_where_it_is_defined(name: str) -> None:
    if name in NEEDS_TORCH and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    found = getattr(pytest_cudafork, name)
    assert found is not None
    if isinstance(found, type):
        assert found.__module__.partition(".")[0] == "pytest_cudafork"


@pytest.mark.parametrize("name", sorted(NEEDS_TORCH))
def test_a_name_that_needs_torch_says_so(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    home = f"pytest_cudafork.{pytest_cudafork._HOME[name][0]}"
    monkeypatch.delitem(sys.modules, home, raising=False)
    with pytest.raises(ModuleNotFoundError, match=f"{name} needs torch, which is not") as told:
        getattr(pytest_cudafork, name)
    assert told.value.name == "torch"
    assert told.value.__suppress_context__


def test_another_module_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pytest_cudafork._HOME, "audit", ("imports.nowhere", "audit"))
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'pytest_cudafork\.imports\.n"):
        _ = pytest_cudafork.audit


def test_an_unknown_name_is_named_in_the_error() -> None:
    with pytest.raises(AttributeError, match=r"'pytest_cudafork' has no attribute 'nothing'"):
        _ = pytest_cudafork.nothing


def test_every_name_with_a_home_is_public() -> None:
    assert set(pytest_cudafork._HOME) <= set(pytest_cudafork.__all__)
