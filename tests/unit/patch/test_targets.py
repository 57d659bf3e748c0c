"""Tests of names of what is patched."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest

from pytest_cudafork.patch import targets


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        (".ROOT", ("", "ROOT")),
        (".work.answer", (".work", "answer")),
        (".work.Engine.step", (".work", "Engine.step")),
        (".work", ("", "work")),  # the module itself, as an attribute of its package
        (".nowhere.answer", ("", "nowhere.answer")),
    ],
)
@pytest.mark.parametrize("imported", ["", "{}", "{}.work"])
def test_the_module_is_found_and_nothing_is_imported_for_it(
    package: str, name: str, parts: tuple[str, str], imported: str
) -> None:
    if imported:
        importlib.import_module(imported.format(package))
    before = set(sys.modules)
    assert targets.split("call", package + name) == (package + parts[0], parts[1])
    assert set(sys.modules) == before


WRONG = {
    "answer": (ValueError, "no dotted name"),
    "a..b": (ValueError, "no dotted name"),
    "a.b c": (ValueError, "no dotted name"),
    "__main__.main": (ValueError, "another module in every process"),
    "no_such_package_at_all.x": (
        ModuleNotFoundError,
        "there is no module 'no_such_package_at_all'",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_name_that_cannot_be_right_is_refused(name: str) -> None:
    error, words = WRONG[name]
    with pytest.raises(error, match=f"call: .*{words}"):
        targets.split("call", name)


def test_modules_and_classes_have_names_and_other_things_do_not(package: str) -> None:
    work: Any = importlib.import_module(f"{package}.work")
    assert targets.name_of("call", work) == f"{package}.work"
    assert targets.name_of("call", work.Engine) == f"{package}.work.Engine"
    local = type("Local", (), {})
    nameless = type(sys)("nameless")
    things: list[object] = [work.Engine(), work.CONFIG, local, nameless, "text"]
    for thing in things:
        with pytest.raises(TypeError, match="call: another process cannot find"):
            targets.name_of("call", thing)
