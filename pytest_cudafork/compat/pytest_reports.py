"""What the plugin uses of pytest's reports, and of what gathers them, that has no public name.

A report of a child is made anew in the parent, where it is to be like one that was made there; and
some of what a test tells is in no report (``isolate/report_data.py``): the values behind the JUnit
file, the counts of subtests. Each function says what it takes and why.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

ENDS_SESSION = (pytest.exit.Exception, KeyboardInterrupt)
"""What ends the session, whoever raises it: ``_pytest.runner.call_and_report`` makes no report of a
phase that it comes from."""


def id_of(item: pytest.Item) -> Any:
    """Return what a report of a test is made with: ``_id``, or the text before pytest 9.2."""
    return getattr(item, "_id", None) or item.nodeid


def use_id_of(item: pytest.Item, report: pytest.TestReport) -> None:
    """Let a report have the very id of a test, as one that is made here has.

    ``_id`` of both, an object from pytest 9.2 on: to set ``nodeid`` would parse its text, and keep
    another one for each report. Before it there is the text alone.
    """
    own = getattr(item, "_id", None)
    if own is not None and "_id" in vars(report):
        vars(report)["_id"] = own
    else:
        report.nodeid = item.nodeid


def only_pytest_serializes(config: pytest.Config) -> bool:
    """Whether no plugin but pytest's own (``_pytest.*``) has a part in how reports travel."""
    hooks = (config.hook.pytest_report_to_serializable, config.hook.pytest_report_from_serializable)
    return all(
        str(getattr(one.plugin, "__name__", "")).startswith("_pytest.")
        for hook in hooks
        for one in hook.get_hookimpls()
    )


def to_plain(config: pytest.Config, report: pytest.TestReport) -> Any:
    """Return a report as plain data, as plugins and pytest itself do it."""
    subtests, reports = _blocked(config)
    made = subtests and subtests.pytest_report_to_serializable(report=report)
    made = made or config.hook.pytest_report_to_serializable(config=config, report=report)
    return made or (reports and reports.pytest_report_to_serializable(report=report))


def from_plain(config: pytest.Config, data: dict[str, Any]) -> Any:
    """Return the report that ``to_plain`` has made data of."""
    subtests, reports = _blocked(config)
    made = subtests and subtests.pytest_report_from_serializable(data=data)
    made = made or config.hook.pytest_report_from_serializable(config=config, data=data)
    return made or (reports and reports.pytest_report_from_serializable(data=data))


def _blocked(config: pytest.Config) -> list[Any]:
    """Return pytest's modules that turn reports into data, where ``-p no:...`` has taken them away.

    ``_pytest.subtests`` and ``_pytest.reports``, else None. Without the second no report travels;
    those of subtests are made by ``_pytest.unittest`` without the first as well, and the second
    writes what it does not read.
    """
    return [
        sys.modules.get(f"_pytest.{name}") if config.pluginmanager.is_blocked(name) else None
        for name in ("subtests", "reports")
    ]


def junit_xml(config: pytest.Config) -> Any:
    """Return what gathers the JUnit file (``_pytest.junitxml.xml_key`` in the stash), or None."""
    junitxml: Any = sys.modules.get("_pytest.junitxml")
    return None if junitxml is None else config.stash.get(junitxml.xml_key, None)


def forget_junit_xml(config: pytest.Config) -> None:
    """Drop it from a session whose plugin for it is no longer registered; pytest would look."""
    junitxml: Any = sys.modules.get("_pytest.junitxml")
    if junitxml is not None and junitxml.xml_key in config.stash:
        del config.stash[junitxml.xml_key]


def is_of_subtest(report: pytest.TestReport) -> bool:
    """Whether a report is of a part of a test, which has others of its own.

    pytest's class for these (``SubtestReport``) is not everywhere; it is of another type than all
    others.
    """
    return type(report) is not pytest.TestReport


def subtest_counts(config: pytest.Config) -> Any:
    """Return where pytest counts failed subtests by test, or None (before pytest 9).

    ``_pytest.subtests.failed_subtests_key`` in the stash. From that number pytest decides, when a
    report is shown, that a test with failed subtests failed.
    """
    subtests: Any = sys.modules.get("_pytest.subtests")
    return None if subtests is None else config.stash.get(subtests.failed_subtests_key, None)


SUBTEST_CONTEXT = "_subtest.context"
"""The key of a serialized report of a subtest that holds its message and arguments."""


def subtest_arguments(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments of a subtest as its serialized report holds them; else nothing."""
    arguments: Mapping[str, Any] = data.get(SUBTEST_CONTEXT, {}).get("kwargs", {})
    return arguments


def sections_of(item: Any) -> list[tuple[str, str, str]]:
    """Return what a test has captured and been given so far: phase, name and text.

    ``item._report_sections``, which the report of each phase shows.
    """
    return [*item._report_sections]


def add_sections(item: pytest.Item, sections: Sequence[tuple[str, str]]) -> None:
    """Let a test have sections of a report that came from elsewhere (``item._report_sections``).

    The report of its teardown has all of them.
    """
    here = [(f"Captured {key} {when}", text) for when, key, text in sections_of(item)]
    for name, text in sections:
        _, _, rest = name.partition("Captured ")
        key, _, when = rest.rpartition(" ")
        if when and (name, text) not in here:
            item.add_report_section(when, key, text)
