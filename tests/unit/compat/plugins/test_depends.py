"""What pytest-depends remembers of tests goes from one process to the other."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.compat.plugins import depends
from tests.unit.compat import require


class Result:
    """As ``TestResult``."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.results: dict[str, str] = {}


def manager_of(*names: str, **dependencies: list[str]) -> Any:
    """Return one that knows these tests, and of some what they depend on."""
    known = {
        name: SimpleNamespace(dependencies=set(dependencies.get(name, ())), unresolved=set())
        for name in names
    }
    return SimpleNamespace(results={name: Result(name) for name in names}, dependencies=known)


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module like the plugin."""
    made: Any = ModuleType("pytest_depends")
    made.clean_nodeid = lambda nodeid: nodeid
    made.managers = [manager_of("a", "b", b=["a"])]
    main: Any = ModuleType("pytest_depends.main")
    main.TestResult = Result
    monkeypatch.setitem(sys.modules, "pytest_depends", made)
    monkeypatch.setitem(sys.modules, "pytest_depends.main", main)
    return made


def item(name: str) -> Any:
    return SimpleNamespace(nodeid=name)


def test_it_remembers_where_it_is_registered(pytester: pytest.Pytester, plugin: Any) -> None:
    config = pytester.parseconfig()
    assert not depends.begin(config, [])
    config.pluginmanager.register(plugin)
    assert depends.begin(config, [])


def test_a_session_that_knows_less_learns_what_a_test_depends_on(plugin: Any) -> None:
    for outcome in ("failed", "passed"):  # it may have been run again
        report: Any = pytest.TestReport("a", ("", 0, ""), {}, outcome, None, "call")
        depends.note(item("a"), report)
    plugin.managers[-1].dependencies["b"].unresolved.add("c")
    packed = depends.pack([item("a"), item("b"), item("unknown"), None])
    assert packed == [None, [{"a": {"call": "passed"}}, ["c"]], None, None]

    there = manager_of("b")
    plugin.managers.append(there)
    depends.enter(item("b"), packed[1], lambda name: None)
    assert there.dependencies["b"].dependencies == {"a"}
    assert there.dependencies["b"].unresolved == {"c"}
    assert there.results["a"].results == {"call": "passed"}


def test_the_names_are_there() -> None:
    module: Any = pytest.importorskip("pytest_depends")
    use = "tests that depend on isolated ones"
    for name in ("managers", "clean_nodeid"):
        require("pytest-depends", module, name, use)
    result = require("pytest-depends", sys.modules["pytest_depends.main"], "TestResult", use)("a")
    assert result.results == {}
    made = require("pytest-depends", module, "DependencyManager", use)()
    made.items = []
    assert (made.results, made.dependencies) == ({}, {})
