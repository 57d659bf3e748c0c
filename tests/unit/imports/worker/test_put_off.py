"""Imports that are put off are loaded; ``sys.lazy_modules`` is a stand-in before Python 3.15."""

from __future__ import annotations

import sys

import pytest

from pytest_cudafork.imports.worker.put_off import load_put_off, put_off_now


def test_without_such_imports_nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys, "lazy_modules", raising=False)
    assert put_off_now() == frozenset()
    loaded: list[str] = []
    load_put_off(loaded.append, put_off_now())
    assert loaded == []


def test_what_was_put_off_meanwhile_is_loaded_once_and_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python takes a name out when it is loaded; one that cannot be loaded stays."""
    waiting = {"before"}
    monkeypatch.setattr(sys, "lazy_modules", waiting, raising=False)
    before = put_off_now()
    waiting |= {"a", "a.name", "gone"}
    loaded: list[str] = []

    def load(name: str) -> None:
        loaded.append(name)
        if name == "a":
            waiting.add("b")
        if name == "gone":
            raise ModuleNotFoundError(name)
        if name == "a.name":
            raise SystemExit(3)
        waiting.discard(name)

    load_put_off(load, before)
    assert loaded == ["a", "a.name", "gone", "b"]
    assert waiting == {"before", "a.name", "gone"}


def test_an_interrupt_is_none_of_the_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "lazy_modules", {"a"}, raising=False)

    def load(name: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_put_off(load, frozenset())
