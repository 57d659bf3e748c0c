"""What pytest-dependency remembers of tests goes from one process to the other."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, ClassVar

import pytest

from pytest_cudafork.compat.plugins import dependency
from tests.unit.compat import require
from tests.unit.isolate import session

SUITE = """
import pytest

@pytest.mark.dependency
def test_a(request): pass

@pytest.mark.dependency(name="second")
def test_b(request): pass

def test_c(request): pass

class TestIt:
    @pytest.mark.dependency
    def test_d(self, request): pass

@pytest.mark.dependency(depends=["second", "no_such"])
def test_e(): pass

@pytest.mark.dependency(depends=["second"], scope="no_such")
def test_f(): pass
"""


class Status:
    """As ``DependencyItemStatus``."""

    def __init__(self) -> None:
        self.results: dict[str, Any] = dict.fromkeys(("setup", "call", "teardown"))


class Manager:
    """As ``DependencyManager``, without the names of tests in a scope."""

    ScopeCls: ClassVar[Any] = {
        "session": pytest.Session,
        "module": pytest.Module,
        "class": pytest.Class,
    }

    def __init__(self) -> None:
        self.results: dict[str, Status] = {}

    @classmethod
    def getManager(cls, item: pytest.Item, scope: str) -> Any:
        """Return that of a node above a test."""
        node: Any = item.getparent(cls.ScopeCls[scope])
        if node is None:
            return None
        if not hasattr(node, "dependencyManager"):
            node.dependencyManager = cls()
        return node.dependencyManager

    def addResult(self, item: pytest.Item, name: str | None, report: Any) -> None:
        """Remember a phase."""
        self.results.setdefault(name or item.name, Status()).results[report.when] = report.outcome


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module like the plugin."""
    made: Any = ModuleType("pytest_dependency")
    made.DependencyManager, made.DependencyItemStatus = Manager, Status
    made._automark = False
    monkeypatch.setitem(sys.modules, "pytest_dependency", made)
    return made


def items_of(pytester: pytest.Pytester) -> list[pytest.Item]:
    return session.items_of(pytester, SUITE, "-o", "markers=dependency")


def report(when: Any, outcome: Any) -> pytest.TestReport:
    return pytest.TestReport("it", ("", 0, ""), {}, outcome, None, when)


def test_it_remembers_where_it_is_registered(pytester: pytest.Pytester, plugin: Any) -> None:
    config = pytester.parseconfig()
    assert not dependency.begin(config, [])
    config.pluginmanager.register(plugin)
    assert dependency.begin(config, [])


@pytest.mark.usefixtures("plugin")
def test_what_is_noted_in_one_process_is_known_in_the_other(pytester: pytest.Pytester) -> None:
    here, there = items_of(pytester), items_of(pytester)
    for item in here:
        dependency.note(item, report("setup", "passed"))
        dependency.note(item, report("call", "failed"))
    packed = dependency.pack([None, *here])
    outcomes = ["passed", "failed", None]
    of_all = dict.fromkeys(("test_a", "second", "test_d", "test_e", "test_f"), outcomes)
    assert packed[:4] == [None, {"session": of_all, "module": of_all}, None, None]
    assert packed[4:] == [{"class": {"test_d": outcomes}}, {"module": {"second": outcomes}}, None]
    for item, one in zip(there, packed[1:], strict=True):
        if one is not None:
            dependency.enter(item, one, lambda name: None)
    assert dependency.pack(there) == packed[1:]


def test_with_automark_all_tests_are_noted(pytester: pytest.Pytester, plugin: Any) -> None:
    item = items_of(pytester)[2]
    dependency.note(item, report("call", "passed"))
    assert dependency.pack([item]) == [None]
    plugin._automark = True
    dependency.note(item, report("call", "passed"))
    assert dependency.pack([item])[0]["module"] == {"test_c": [None, "passed", None]}


def test_the_names_are_there(pytester: pytest.Pytester) -> None:
    module: Any = pytest.importorskip("pytest_dependency")
    use = "tests that depend on isolated ones"
    require("pytest-dependency", module, "_automark", use)
    assert list(require("pytest-dependency", module, "DependencyItemStatus", use)().results) == [
        *("setup", "call", "teardown")
    ]
    manager = require("pytest-dependency", module, "DependencyManager", use)
    assert "session" in require("pytest-dependency", manager, "ScopeCls", use)
    (item,) = pytester.getitems("def test_a(): pass")
    made = manager.getManager(item, scope="module")
    made.addResult(item, "it", report("call", "passed"))
    node: Any = item.getparent(pytest.Module)
    assert node.dependencyManager.results["it"].results["call"] == "passed"
