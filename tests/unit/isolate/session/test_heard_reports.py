"""Which hooks hear of the report of a body, and what they get."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_cudafork.isolate.session.heard_reports import hear

HOOKS = """
import pytest
heard = []

class New:
    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        heard.append((report.outcome, call.when, call.excinfo.type.__name__))
        report.sections.append(("more", "of it"))
        report.outcome = "skipped"
        return report

class Old:
    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self):
        outcome = yield
        heard.append(outcome.get_result().sections)

class Broken:
    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self):
        raise ValueError("it lacks something here")
        yield

class NoWrapper:
    def pytest_runtest_makereport(self):
        heard.append("no wrapper")

def pytest_configure(config):
    for plugin in (Old, New, Broken, NoWrapper):
        config.pluginmanager.register(plugin())
"""


def test_wrappers_get_a_copy_and_judges_nothing(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(HOOKS)
    (item,) = pytester.getitems("def test_it(): pass")
    where: Any = ("test_it.py", 0, "test_it")
    report = pytest.TestReport("test_it.py::test_it", where, {}, "failed", "bad", "call")
    hear(item, report)
    assert (report.outcome, report.sections) == ("failed", [])
    (conftest,) = (
        one
        for one in item.config.pluginmanager.get_plugins()
        if str(getattr(one, "__file__", "")).endswith("conftest.py") and hasattr(one, "heard")
    )
    heard: Any = conftest.heard
    assert sorted(heard, key=str) == [("failed", "call", "Failed"), [("more", "of it")]]
