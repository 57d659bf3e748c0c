"""The phantom takes the driver's place here and in children, and gives everything back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_cudafork.observe.driver import native_libs, phantom
from pytest_cudafork.settings import environment
from tests.unit.observe.driver.fake_library import Library

NAMES = (environment.FACE, environment.LIBRARY_PATH, environment.TRITON_DRIVER)


class Loader:
    """What is loaded, and what is mapped already."""

    def __init__(self) -> None:
        self.library = Library()
        self.loaded: list[tuple[str, int]] = []
        self.there: dict[str, Any] = {}

    def load(self, path: str, mode: int) -> Library:
        """Load it."""
        self.loaded.append((path, mode))
        return self.library

    def mapped(self, name: str) -> Any:
        """Return what is mapped under a name."""
        return self.there.get(name)


@pytest.fixture(autouse=True)
def loader(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loader]:
    """Load nothing in truth; nothing is mapped and no variable set."""
    made = Loader()
    monkeypatch.setattr(native_libs, "why_not", lambda: "")
    monkeypatch.setattr(native_libs, "load", made.load)
    monkeypatch.setattr(native_libs, "mapped", made.mapped)
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    yield made
    assert [name for name in NAMES if environment.is_set(name)] == []
    monkeypatch.undo()


def test_without_a_gpu_only_the_driver_is_loaded_for_everybody(loader: Loader) -> None:
    witness = phantom.install("absent")
    paths = native_libs.PHANTOM_DRIVER, native_libs.PHANTOM_NAME
    assert loader.loaded == [(path, os.RTLD_GLOBAL | os.RTLD_NOW) for path in paths]
    assert environment.value(environment.FACE) == "absent"
    folder = os.path.dirname(native_libs.PHANTOM_DRIVER)
    assert environment.value(environment.LIBRARY_PATH) == folder
    assert environment.value(environment.TRITON_DRIVER) == folder
    assert (witness.face, witness.reason) == ("absent", "")
    witness.undo()
    witness.undo()
    set_face: Any = loader.library.cudafork_set_face
    assert set_face.calls == [(b"absent",), (None,)]


def test_gpus_come_with_nvml(loader: Loader) -> None:
    witness = phantom.install("sm_90x2")
    assert [path for path, _ in loader.loaded] == [
        native_libs.PHANTOM_DRIVER,
        native_libs.PHANTOM_NAME,
        native_libs.PHANTOM_NVML,
    ]
    folders = environment.value(environment.LIBRARY_PATH).split(os.pathsep)
    assert folders == [
        os.path.dirname(native_libs.PHANTOM_DRIVER),
        os.path.dirname(native_libs.PHANTOM_NVML),
    ]
    witness.undo()


def test_a_real_nvml_is_left_alone(loader: Loader) -> None:
    loader.there["libnvidia-ml.so.1"] = object()
    phantom.install("sm_90").undo()
    assert [path for path, _ in loader.loaded] == [
        native_libs.PHANTOM_DRIVER,
        native_libs.PHANTOM_NAME,
    ]


def test_a_phantom_that_is_mapped_is_used_again(loader: Loader) -> None:
    loader.there["libcuda.so.1"] = loader.there["libcuda.so"] = loader.library
    witness = phantom.install("absent")
    assert loader.loaded == []
    library: Any = witness.native.library
    assert library is loader.library
    witness.undo()


def test_a_real_driver_that_is_mapped_cannot_be_replaced(loader: Loader) -> None:
    loader.there["libcuda.so.1"] = object()
    with pytest.raises(phantom.PhantomError, match=r"A real 'libcuda\.so\.1' is mapped"):
        phantom.install("absent")


def test_a_wrong_face_changes_nothing(loader: Loader) -> None:
    with pytest.raises(ValueError, match="is not a face"):
        phantom.install("gpu")
    assert loader.loaded == []
