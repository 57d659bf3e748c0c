"""Tests of classes of warnings that are looked up when their module is there."""

from __future__ import annotations

import pickle
import sys
import warnings
from types import ModuleType

import pytest

from pytest_cudafork.call.late_category import Named, named


class Outer:
    """Holds a class below a class."""

    class Inner(UserWarning):
        """The class."""


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module with a warning, not imported yet."""
    made = ModuleType("imported_late")
    made.LateWarning = type(  # type: ignore[attr-defined]
        "LateWarning", (UserWarning,), {"__module__": "imported_late"}
    )
    monkeypatch.delitem(sys.modules, "imported_late", raising=False)
    return made


def test_a_class_that_is_there_arrives_as_itself() -> None:
    for category in (DeprecationWarning, Outer.Inner):
        assert Named.suits(category)
        assert pickle.loads(pickle.dumps(Named(category))) is category


def test_a_class_that_its_name_does_not_find_is_not_suited() -> None:
    class Local(UserWarning):
        pass

    assert not Named.suits(Local)


def test_before_its_module_is_imported_no_warning_is_meant() -> None:
    late = named("imported_late", "LateWarning")
    assert issubclass(late, Warning)
    assert not issubclass(UserWarning, late)
    assert "imported_late" not in sys.modules


def test_once_its_module_is_imported_its_warnings_are_meant(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = named("imported_late", "LateWarning")
    monkeypatch.setitem(sys.modules, "imported_late", module)
    derived: type[Warning] = type("Derived", (module.LateWarning,), {})
    assert issubclass(module.LateWarning, late)
    assert issubclass(derived, late)
    assert not issubclass(UserWarning, late)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", late)
        warnings.warn("ignored", derived, stacklevel=1)
        warnings.warn("shown", UserWarning, stacklevel=1)
    assert [str(one.message) for one in caught] == ["shown"]


def test_what_stands_for_a_class_travels_on_by_the_same_name(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = named("imported_late", "LateWarning")
    assert Named.suits(late)
    data = pickle.dumps(Named(late))
    monkeypatch.setitem(sys.modules, "imported_late", module)
    assert pickle.loads(data) is module.LateWarning
