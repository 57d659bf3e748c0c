"""The choice of a backend: by name, by what a test prefers, by what there is."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.capture import choose
from pytest_cudafork.errors import GraphUsageError
from tests.support.sessions import needs_torch


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "why_no_gpu", lambda: "no GPU here")


def test_auto_means_what_is_preferred_meanwhile() -> None:
    with choose.preferring("software"):
        assert choose.resolve("auto") == "software"
        with choose.preferring("cuda"):
            assert choose.resolve("auto") == "cuda"
            assert choose.resolve("software") == "software"
        assert choose.resolve("auto") == "software"


def test_auto_means_the_gpu_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with choose.preferring("auto"):
        for reason, name in ((None, "cuda"), ("none", "software")):
            monkeypatch.setattr(choose, "why_not", lambda _, reason=reason: reason)
            assert choose.resolve("auto") == name


def test_another_name_is_refused() -> None:
    with pytest.raises(GraphUsageError, match="backend='rocm': use one of auto, software, cuda"):
        choose.resolve("rocm")


@needs_torch
def test_a_backend_that_works_here() -> None:
    assert choose.usable("software").name == "software"
    assert [one.name for one in choose.backends(["software", "cuda"])] == ["software", "cuda"]


@needs_torch
def test_one_that_does_not_is_refused_with_what_to_do(no_gpu: None) -> None:
    assert choose.why_not("cuda") == "no GPU here"
    with pytest.raises(GraphUsageError, match=r"cannot be used: no GPU here; use backend='auto'"):
        choose.usable("cuda")


def test_without_torch_or_a_driver_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "why_no_driver", lambda: "its library is missing")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert choose.why_no_gpu() == "no GPU: its library is missing"
    monkeypatch.setattr(choose, "why_no_driver", lambda: "")
    assert choose.why_no_gpu() is None
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert choose.why_no_gpu() == "torch is not installed"
    assert choose.why_not("software") == choose.why_not("cuda") == "torch is not installed"


@needs_torch
def test_a_check_within_a_check_is_refused() -> None:
    beside: list[str] = []

    @contextlib.contextmanager
    def note() -> Iterator[None]:
        beside.append("in")
        yield
        beside.append("out")

    backend: Any = SimpleNamespace(beside_graphs=note)

    def inner() -> Any:
        with choose.checking("the inner", backend):
            raise AssertionError("it must not come to this")

    with (
        choose.checking("the outer", backend),
        pytest.raises(GraphUsageError, match="the inner was called while the outer"),
    ):
        inner()
    assert beside == ["in", "out"]
    with choose.checking("the next", backend):
        assert beside[-1] == "in"
    assert beside[-1] == "out"
