"""Names of allure-pytest, and what is done with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_cudafork.compat.plugins import allure
from tests.unit.compat import require

listener_module = pytest.importorskip("allure_pytest.listener")


@pytest.fixture
def item(pytester: pytest.Pytester, tmp_path: Path) -> pytest.Item:
    """A test of a session with allure-pytest, whose result has begun."""
    (made,) = pytester.getitems("def test_it(): pass")
    listener = listener_module.AllureListener(made.config)
    made.config.pluginmanager.register(listener, allure.LISTENER)
    next(listener.pytest_runtest_protocol(made, None))
    return made


def result_of(item: pytest.Item) -> Any:
    listener: Any = item.config.pluginmanager.get_plugin(allure.LISTENER)
    return listener.allure_logger.get_test(listener._cache.get(item.nodeid))


def report(item: pytest.Item, outcome: Any) -> pytest.TestReport:
    return pytest.TestReport(
        item.nodeid, item.location, {}, outcome, "It died.\nOf this.", "call", start=1.5, stop=2.0
    )


def test_the_names_are_there(item: pytest.Item) -> None:
    listener = item.config.pluginmanager.get_plugin(allure.LISTENER)
    for name in ("_cache.pop", "_cache.get", "allure_logger.drop_test", "allure_logger.get_test"):
        require("allure-pytest", listener, name, "tests whose process has died")


@pytest.mark.parametrize(("outcome", "status"), [("failed", "broken"), ("skipped", "skipped")])
def test_a_result_that_has_begun_says_of_what_a_test_died(
    item: pytest.Item, outcome: str, status: str
) -> None:
    allure.enter_failure(item, report(item, outcome))
    result = result_of(item)
    assert (result.status, result.statusDetails.message) == (status, "It died.")
    assert result.statusDetails.trace == "It died.\nOf this."
    assert (result.start, result.stop) == (1500, 2000)
    assert result.fullName.endswith("test_it")
    assert result.historyId


def test_a_result_that_another_process_writes_is_dropped_here(item: pytest.Item) -> None:
    listener: Any = item.config.pluginmanager.get_plugin(allure.LISTENER)
    uuid = listener._cache.get(item.nodeid)
    allure.drop_result(item)
    assert listener.allure_logger.get_test(uuid) is None
    assert listener._cache.get(item.nodeid) is None
    allure.drop_result(item)


def test_without_the_plugin_there_is_nothing_to_do(pytester: pytest.Pytester) -> None:
    (item,) = pytester.getitems("def test_it(): pass")
    allure.drop_result(item)
    allure.enter_failure(item, report(item, "failed"))
