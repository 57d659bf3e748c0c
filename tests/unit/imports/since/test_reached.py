"""Which imports changed files reach by a record, and when a record does not tell."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_cudafork.imports.since.reached import Reach, why_all
from pytest_cudafork.imports.since.record import ImportsRecord, SeenFile, SeenImport
from pytest_cudafork.imports.values.targets import Target

ABOUT = {
    "plugin": "1",
    "python": "3.12",
    "device": "sm_90",
    "installed": {"torch-2.dist-info": "x"},
    "search_path": {".": ["pkg"]},
}
MODULES = {"pkg": "pkg/__init__.py", "pkg.a": "pkg/a.py", "pkg.b": "pkg/b.py", "pkg.c": "pkg/c.py"}
TARGETS = [Target("pkg", name) for name in MODULES]


def record(
    own: dict[str, list[str] | None],
    imports: dict[str, tuple[str, ...]] | None = None,
    shared: tuple[str, ...] = (),
    dynamic: tuple[str, ...] = (),
    more: tuple[str, ...] = (),
) -> ImportsRecord:
    files = {
        path: SeenFile("1", (imports or {}).get(path, ()), path in dynamic)
        for path in (*MODULES.values(), *more)
    }
    seen = {
        f"pkg::{name}": SeenImport(None if paths is None else frozenset(paths))
        for name, paths in own.items()
    }
    return ImportsRecord(ABOUT, MODULES, files, seen, frozenset(shared))


OWN: dict[str, list[str] | None] = {
    "pkg": ["pkg/__init__.py"],
    "pkg.a": ["pkg/__init__.py", "pkg/a.py"],
    "pkg.b": ["pkg/__init__.py", "pkg/a.py", "pkg/b.py", "pkg/data.json"],
    "pkg.c": ["pkg/__init__.py", "pkg/c.py"],
}


def reached(known: ImportsRecord, *changed: str) -> dict[str, str]:
    reach = Reach(known, changed)
    found = {name: reach.file_for(name) for name in known.imports}
    return {name.partition("::")[2]: file for name, file in found.items() if file is not None}


@pytest.mark.parametrize(
    ("changed", "modules"),
    [
        ("pkg/c.py", {"pkg.c"}),
        ("pkg/a.py", {"pkg.a", "pkg.b"}),
        ("pkg/data.json", {"pkg.b"}),
        ("pkg/__init__.py", set(MODULES)),
        ("README.md", set()),
    ],
)
def test_an_import_reaches_what_it_executed_and_read(changed: str, modules: set[str]) -> None:
    assert reached(record(OWN), changed) == dict.fromkeys(modules, changed)


def test_an_import_of_which_nothing_is_known_is_always_wanted() -> None:
    assert reached(record({**OWN, "pkg.a": None}), "pkg/c.py") == {"pkg.a": "", "pkg.c": "pkg/c.py"}


ALONE: dict[str, list[str] | None] = {name: [path] for name, path in MODULES.items()}
"""What each executes where the fork server has executed all others before."""


def test_of_what_is_shared_an_import_reaches_what_sources_name() -> None:
    known = record(
        {"pkg.b": ["pkg/b.py"], "pkg.c": ["pkg/c.py"]},
        {"pkg/b.py": ("pkg.a.something",), "pkg/c.py": ("pkg.nothing", "os")},
        shared=("pkg/__init__.py", "pkg/a.py"),
    )
    assert reached(known, "pkg/a.py") == {"pkg.b": "pkg/a.py"}
    assert set(reached(known, "pkg/__init__.py")) == {"pkg.b", "pkg.c"}, "parents are run"


def test_names_are_followed_through_what_is_shared() -> None:
    known = record(
        {"pkg.b": ["pkg/b.py"]},
        {"pkg/b.py": ("pkg.a",), "pkg/a.py": ("pkg.c",)},
        shared=("pkg/a.py", "pkg/c.py"),
    )
    assert reached(known, "pkg/c.py") == {"pkg.b": "pkg/c.py"}


def test_a_module_that_imports_by_name_may_use_all_that_is_shared() -> None:
    names: dict[str, tuple[str, ...]] = {"pkg/b.py": ("pkg.c",)}
    known = record({"pkg.b": ["pkg/b.py"]}, names, ("pkg/a.py", "pkg/c.py"), dynamic=("pkg/c.py",))
    assert reached(known, "pkg/a.py") == {"pkg.b": "pkg/a.py"}


def test_code_outside_the_package_may_use_all_that_is_shared() -> None:
    known = record(
        {"pkg.b": ["pkg/b.py", "tools/t.py"], "pkg.c": ["pkg/c.py"]},
        shared=("pkg/a.py",),
        more=("tools/t.py",),
    )
    assert reached(known, "pkg/a.py") == {"pkg.b": "pkg/a.py"}
    everywhere = record({"pkg.c": ["pkg/c.py"]}, shared=("pkg/a.py", "tools/t.py"))
    assert reached(everywhere, "pkg/a.py") == {"pkg.c": "pkg/a.py"}


def test_a_shared_file_that_is_no_module_reaches_all() -> None:
    reach = Reach(record(ALONE, shared=("pkg/data.json",)), ["pkg/data.json"])
    assert reach.by_all == "pkg/data.json"
    assert reach.file_for("pkg::pkg.c") == "pkg/data.json"


def test_a_record_of_the_same_surroundings_tells() -> None:
    assert why_all(record(ALONE), ABOUT, MODULES, TARGETS) == ""


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("plugin", "2", "pytest-cudafork was 1 in the last audit and is 2 now"),
        ("python", "3.13", "Python was 3.12"),
        ("device", "real", "the device was sm_90"),
        ("installed", {"torch-3.dist-info": "x"}, "torch-2.dist-info, torch-3.dist-info"),
        ("installed", {"torch-2.dist-info": "y"}, "installed packages have changed: torch-2."),
        ("search_path", {".": ["pkg", "typing"]}, "other modules to import in .: typing"),
    ],
)
def test_a_record_of_other_surroundings_does_not(key: str, value: Any, words: str) -> None:
    assert words in why_all(record(ALONE), {**ABOUT, key: value}, MODULES, TARGETS)


def test_a_folder_that_only_one_of_two_audits_searched_says_nothing() -> None:
    about = {**ABOUT, "search_path": {"tests": ["t"]}}
    assert why_all(record(ALONE), about, MODULES, TARGETS) == ""


def test_no_record_a_new_module_and_one_that_has_moved_are_reasons() -> None:
    assert "no record of an earlier audit" in why_all(None, ABOUT, MODULES, TARGETS)
    new = [*TARGETS, Target("pkg", "pkg.d"), Target("pkg", "pkg.a", "lib")]
    words = why_all(record(ALONE), ABOUT, MODULES, new)
    assert words.endswith("by its name: pkg::pkg.d, pkg::pkg.a[without lib]")
    moved = {**MODULES, "pkg.a": "pkg/a/__init__.py"}
    assert why_all(record(ALONE), ABOUT, moved, TARGETS) == "no longer in the same file: pkg.a"
