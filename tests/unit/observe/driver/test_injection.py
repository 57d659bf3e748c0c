"""The injection is named to the driver, and no profiler is disturbed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_cudafork.observe.driver import injection, native_libs
from pytest_cudafork.settings import environment
from tests.unit.observe.driver.fake_library import Library


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A library that can be loaded, and no profiler."""
    made = Library(phantom=False)
    monkeypatch.setattr(native_libs, "why_not", lambda: "")
    monkeypatch.setattr(native_libs, "load", lambda path, mode: made)
    monkeypatch.delenv(environment.INJECTION, raising=False)
    yield made
    monkeypatch.undo()


def test_the_driver_finds_the_library_until_the_undo(library: Any) -> None:
    witness = injection.install()
    assert witness.native is not None
    assert witness.reason == ""
    assert environment.value(environment.INJECTION) == native_libs.INJECTION
    assert library.cudafork_arm.calls[0][0] > 0
    witness.undo()
    witness.undo()
    assert environment.optional(environment.INJECTION) is None
    assert library.cudafork_arm.calls[-1] == (0, -1)
    assert len(library.cudafork_arm.calls) == 2


def test_a_profiler_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.INJECTION, "/opt/nsys.so")
    witness = injection.install()
    assert witness.native is None
    assert witness.reason == "CUDA_INJECTION64_PATH is already set to '/opt/nsys.so'; left alone"
    witness.undo()
    assert environment.value(environment.INJECTION) == "/opt/nsys.so"


def test_an_inner_injection_ends_before_the_outer_one() -> None:
    outer, inner = injection.install(), injection.install()
    inner.undo()
    assert environment.value(environment.INJECTION) == native_libs.INJECTION
    outer.undo()
    assert environment.optional(environment.INJECTION) is None


def test_libraries_that_were_not_built_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_libs, "why_not", lambda: "not built")
    with pytest.raises(native_libs.NativeUnavailable, match="not built"):
        injection.install()
