"""What other plugins and isolated tests need of each other in the pytest process.

pytest-timeout, pytest-rerunfailures and allure-pytest do their work inside
the process of the test, as they would in the pytest process (see ``child/plugins.py``); here stands
what is left to do.
"""

from __future__ import annotations

from typing import Any

import pytest

from pytest_cudafork.compat.plugins import allure, rerunfailures
from pytest_cudafork.compat.unpatched import re, time
from pytest_cudafork.process.protocol import messages

RUNS = pytest.StashKey[int]()
"""How often a test has been run before, in processes that died."""


def reruns_for(item: pytest.Item) -> dict[str, int] | None:
    """Return what pytest-rerunfailures has to know in a child, for its work order."""
    if not rerunfailures.is_active(item.config):
        return None
    session = rerunfailures.reruns_of_session(item.config)
    return {"runs": item.stash.get(RUNS, 0), "session": session}


def announce_rerun(item: pytest.Item) -> None:
    """Tell this session that a test, which runs in a child, begins once more there."""
    _begin_again(item)
    rerunfailures.count_rerun_of_session(item.config)


def rerun_elsewhere(item: pytest.Item, runs: int, error: str) -> bool:
    """Whether a test that failed, or whose process died, is to run again, in another process.

    Asks pytest-rerunfailures, and counts the run if so.

    Args:
        item: The test.
        runs: How often it has been run so far.
        error: What became of it, as "AssertionError: text".

    """
    if not rerunfailures.is_active(item.config):
        return False
    reruns = rerunfailures.most_reruns(item)
    if reruns is None or runs > reruns or not _wanted(item, error):
        return False
    return rerunfailures.may_rerun_once_more(item.config)


def prepare_rerun(item: pytest.Item, runs: int) -> None:
    """Wait as long as is wished, and begin a test once more."""
    time.sleep(rerunfailures.delay_before(item, runs))
    item.stash[RUNS] = runs
    _begin_again(item)


def prepare_report(item: pytest.Item) -> None:
    """Let the teardown of a test be reported that was set up elsewhere.

    pytest-rerunfailures prepares itself when the set-up is reported, and fails without.
    """
    if rerunfailures.is_active(item.config):
        set_up = pytest.CallInfo.from_call(lambda: None, when="setup")
        item.ihook.pytest_runtest_makereport(item=item, call=set_up)


def conclude(item: pytest.Item, death: pytest.TestReport | None) -> None:
    """Settle who writes the result of allure-pytest: the process of the test, unless it has died.

    Args:
        item: The test.
        death: What was reported in place of its process, or None.

    """
    if death is None:
        allure.drop_result(item)
    else:
        allure.enter_failure(item, death)


def sendable(config: pytest.Config, value: Any) -> Any:
    """Return what a child told, in a worker of pytest-xdist with all text such that it can be sent.

    Half a surrogate pair has no form in UTF-8, and a worker whose report holds one ends with an
    internal error, which costs the tests that it still had to run. It is written as an escape.
    """
    return _encodable(value) if hasattr(config, "workerinput") else value


def sendable_warning(
    config: pytest.Config, message: messages.CaughtWarning
) -> messages.CaughtWarning:
    """Return a warning that a child told, likewise: its text alone where that cannot be sent."""
    text = sendable(config, message.text)
    return message if text == message.text else message.changed(pickled=None, text=text)


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, list | tuple):
        return type(value)(_encodable(part) for part in value)
    if isinstance(value, dict):
        return {_encodable(key): _encodable(part) for key, part in value.items()}
    return value


def _begin_again(item: pytest.Item) -> None:
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    rerunfailures.forget_failed_subtests(item)


def _wanted(item: pytest.Item, text: str) -> bool:
    """Whether the options name this kind of error; a condition is only asked where it runs."""
    if rerunfailures.is_excluded(item):
        return False
    only = getattr(item.config.option, "only_rerun", None) or ()
    never = getattr(item.config.option, "rerun_except", None) or ()
    if only and not any(re.search(pattern, text) for pattern in only):
        return False
    return not any(re.search(pattern, text) for pattern in never)
