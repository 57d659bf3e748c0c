"""The recipe for steps: which hooks note a failure, and when they are told of one again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_cudafork.isolate import incremental
from tests.unit.isolate import session

RECIPE = """
import pytest

noted = []

def pytest_runtest_makereport(item, call):
    if "incremental" in item.keywords and call.excinfo is not None:
        noted.append((item.name, call.when, call.excinfo.typename))

def pytest_runtest_setup(item):
    if "incremental" in item.keywords and noted:
        pytest.xfail("previous test failed")
"""
MARKER = """
def pytest_configure(config):
    config.addinivalue_line("markers", "incremental: steps")
"""
SUITE = """
import pytest

@pytest.mark.incremental
class TestSteps:
    def test_a(self): pass
    def test_b(self): pass

def test_other(): pass
"""


def items_of(pytester: pytest.Pytester, conftest: str = RECIPE) -> tuple[list[pytest.Item], Any]:
    """Return the tests of a session, and its conftest."""
    pytester.makeconftest(conftest + MARKER)
    items = session.items_of(pytester, SUITE)
    plugins = items[0].config.pluginmanager.get_plugins()
    path = str(Path(pytester.path, "conftest.py"))
    return items, next(one for one in plugins if getattr(one, "__file__", "") == path)


def report(outcome: Any, when: Any = "call", longrepr: Any = None) -> pytest.TestReport:
    return pytest.TestReport("it", ("", 0, ""), {}, outcome, longrepr, when)


def test_a_step_has_the_marker_and_hooks_that_name_it(pytester: pytest.Pytester) -> None:
    items, _ = items_of(pytester)
    assert [incremental.is_step(item) for item in items] == [True, True, False]


@pytest.mark.parametrize(
    "conftest",
    [
        "",
        RECIPE.replace("def pytest_runtest_setup", "def setup"),
        RECIPE.replace('"incremental" in item.keywords and call', "call"),
        RECIPE.replace(
            "def pytest_runtest_makereport",
            "@pytest.hookimpl(tryfirst=True, wrapper=True)\ndef pytest_runtest_makereport",
        ).replace("        noted", "        yield\n        noted"),
    ],
    ids=["none", "nobody asks", "another marker", "a wrapper"],
)
def test_other_hooks_are_left_alone(pytester: pytest.Pytester, conftest: str) -> None:
    items, _ = items_of(pytester, conftest)
    assert not any(incremental.is_step(item) for item in items)


def test_what_has_raised_elsewhere_is_noted_here_and_told_to_later_steps(
    pytester: pytest.Pytester,
) -> None:
    (a, b, other), here = items_of(pytester)
    expected = report("skipped")
    vars(expected)["wasxfail"] = "known"
    silent = (report("passed"), report("failed", longrepr="[XPASS(strict)] why"))
    for one in (*silent, report("failed", "setup"), report("skipped"), expected):
        incremental.note(a, one)
        incremental.note(other, one)
    kinds = [("setup", "Failed"), ("call", "Skipped"), ("call", "XFailed")]
    assert here.noted == [("test_a", *each) for each in kinds]
    packed = incremental.pack([a, b, other, None])
    assert packed[1:] == [None] * 3

    here.noted.clear()
    names = {tuple(name[0]): item for item in (a,) for name, *_ in packed[0]}
    incremental.enter(a, packed[0], lambda name: names.get(tuple(name[0])))
    assert here.noted == [("test_a", *each) for each in kinds]
    incremental.enter(a, packed[0], lambda name: None)  # it is not there
    assert len(here.noted) == 3


def test_a_hook_that_fails_for_a_test_that_was_not_set_up_is_let_be(
    pytester: pytest.Pytester,
) -> None:
    conftest = RECIPE.replace("noted.append", "noted.append(0), item.funcargs['x'], ")
    (a, b, _), here = items_of(pytester, conftest)
    incremental.note(a, report("failed"))
    assert here.noted == [0]
    assert incremental.pack([b])[0]


def test_steps_of_this_process_are_kept_for_later_ones(pytester: pytest.Pytester) -> None:
    (a, b, other), here = items_of(pytester)
    listener = incremental.InThisProcess()

    def call(error: BaseException | None) -> Any:
        def run() -> None:
            if error is not None:
                raise error

        return pytest.CallInfo.from_call(run, "call")

    listener.pytest_runtest_makereport(a, call(None))
    listener.pytest_runtest_makereport(other, call(ValueError()))
    assert incremental.pack([a, other]) == [None, None]
    listener.pytest_runtest_makereport(a, call(ValueError()))
    listener.pytest_runtest_makereport(a, call(pytest.skip.Exception("no")))
    kept = incremental.pack([b])[0]
    assert [each[1:] for each in kept] == [["call", "failed"], ["call", "skipped"]]
    assert here.noted == []  # pytest has called the hook itself
