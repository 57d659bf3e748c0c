"""Tests of the driver's side run on libraries that are objects in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pytest_cudafork.observe.driver import native_libs
from tests.unit.observe.driver.fake_library import Library


@pytest.fixture(autouse=True)
def _functions_of_fake_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Call a function of a fake library as it is; those of a real one as ever."""
    real = native_libs._with_gil

    def with_gil(library: Any, name: str, *types: Any) -> Callable[..., int]:
        if isinstance(library, Library):
            function: Callable[..., int] = getattr(library, name)
            return function
        return real(library, name, *types)

    monkeypatch.setattr(native_libs, "_with_gil", with_gil)
