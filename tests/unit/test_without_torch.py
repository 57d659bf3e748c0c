"""What is said where torch is not installed."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest

from pytest_cudafork import without_torch


def test_it_is_missing_where_an_import_finds_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert without_torch.torch_is_missing()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert not without_torch.torch_is_missing()


def test_what_stands_for_it_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    assert not without_torch.torch_is_missing()


def test_the_message_says_how_to_get_it() -> None:
    told = without_torch.needs_torch("the fixture needs")
    assert told.startswith("the fixture needs torch, which is not installed")
    assert told.endswith('pip install "pytest-cudafork[torch]"')
