"""What the plugin uses of pytest-rerunfailures, which documents its options and its marker alone.

It counts the reruns of a session in ``config.failures_db``, and decides per test; a test whose
process has died is counted and begun again by this plugin, in the same way.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest

from pytest_cudafork.compat.plugins.taking_part import takes_part


def is_loaded() -> bool:
    """Whether pytest-rerunfailures has been imported."""
    return "pytest_rerunfailures" in sys.modules


def is_active(config: pytest.Config) -> bool:
    """Whether it takes part in this session."""
    return takes_part(config, "pytest_rerunfailures")


def most_reruns(item: pytest.Item) -> int | None:
    """Return how often a test may run again (``get_reruns_count``); None: never."""
    reruns: int | None = sys.modules["pytest_rerunfailures"].get_reruns_count(item)
    return reruns


def is_excluded(item: pytest.Item) -> bool:
    """Whether an option leaves out the file of a test.

    ``_is_rerun_path_excluded``, in newer releases.
    """
    excluded = getattr(sys.modules["pytest_rerunfailures"], "_is_rerun_path_excluded", None)
    return excluded is not None and bool(excluded(item))


def delay_before(item: pytest.Item, runs: int) -> float:
    """Return the seconds to wait before a test runs again that has run so often.

    ``get_reruns_delay``, and ``get_reruns_delay_backoff_factor`` in newer releases.
    """
    plugin: Any = sys.modules["pytest_rerunfailures"]
    factor = getattr(plugin, "get_reruns_delay_backoff_factor", lambda item: 1.0)(item)
    return float(plugin.get_reruns_delay(item) * factor ** (runs - 1))


def forget_failed_subtests(item: pytest.Item) -> None:
    """Take the failed subtests of a test that begins again out of the terminal's counts.

    ``_remove_failed_subtest_reports_from_stats``, in newer releases, as the plugin does itself.
    """
    plugin: Any = sys.modules.get("pytest_rerunfailures")
    forget = getattr(plugin, "_remove_failed_subtest_reports_from_stats", None)
    if forget is not None:
        forget(item.config, item.session, item.nodeid)


def may_rerun_once_more(config: pytest.Config) -> bool:
    """Whether the session may have another rerun (``--max-suite-reruns``); counts it if so."""
    most = getattr(config.option, "max_suite_reruns", None)
    counts: Any = getattr(config, "failures_db", None)
    return most is None or bool(counts.try_increment_suite_reruns(most))


def count_without_server(config: pytest.Config) -> None:
    """Let a process that works for a session count by itself, before it is configured.

    Where pytest-xdist is loaded, and the process is not one of its workers, the plugin would start
    a thread with a server (``ServerStatusDB``) for workers that there are not: a process with
    threads cannot serve as a fork server.
    """
    plugin: Any = sys.modules.get("pytest_rerunfailures")
    if hasattr(plugin, "ServerStatusDB") and not hasattr(config, "workerinput"):
        plugin.ServerStatusDB = plugin.StatusDB


def reruns_of_session(config: pytest.Config) -> int:
    """Return how many reruns the session has had; 0 where processes share the number anyway."""
    counts = _own_counts(config)
    return 0 if counts is None else int(counts.get_suite_reruns())


def count_rerun_of_session(config: pytest.Config) -> None:
    """Count a rerun of the session, where processes do not share the number anyway."""
    counts = _own_counts(config)
    if counts is not None:
        counts.increment_suite_reruns()


def continue_counts(item: pytest.Item, runs: int, session: int) -> None:
    """Let a child go on counting where its parent stands.

    Args:
        item: The child's test; others may follow it there.
        runs: How often it has run before, in processes that died.
        session: What ``reruns_of_session`` returned in the parent.

    """
    counts: Any = getattr(item.config, "failures_db", None)
    if counts is None:
        return
    if runs:
        of_others, test = counts.get_test_failures, item.nodeid
        counts.get_test_failures = lambda name: runs if name == test else of_others(name)
    counts = _own_counts(item.config)
    while counts is not None and counts.get_suite_reruns() < session:
        counts.increment_suite_reruns()


def _own_counts(config: pytest.Config) -> Any:
    """Return what counts the reruns of the session; None where a worker of xdist asks for it."""
    counts: Any = getattr(config, "failures_db", None)
    shared = hasattr(counts, "sock") and hasattr(config, "workerinput")
    return counts if hasattr(counts, "get_suite_reruns") and not shared else None
