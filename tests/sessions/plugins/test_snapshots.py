"""Isolated tests that compare snapshots: none is written or deleted for what nobody knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.isolation import METHODS
from tests.support.isolation_plugins import needs
from tests.support.sessions import run_session

SOURCE = """
def test_a(snapshot): assert {"a": 1} == snapshot
def test_b(snapshot): assert "text" == snapshot(name="named")
"""


@pytest.fixture(autouse=True)
def _in_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both plugins look there whether they run in a worker of pytest-xdist, as these tests may."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)


def files_of(folder: Path) -> dict[str, str]:
    """What the files of snapshots hold."""
    return {one.name: one.read_text() for one in folder.rglob("*.ambr")}


@pytest.fixture
def taken(pytester: pytest.Pytester) -> dict[str, str]:
    """The snapshots of two tests, taken in one process."""
    plugin = needs("syrupy")
    pytester.makepyfile(test_it=SOURCE)
    run_session(pytester, "-p", plugin, "--snapshot-update").assert_outcomes(passed=2)
    return files_of(pytester.path)


@pytest.mark.parametrize("workers", [[], ["-p", "xdist.plugin", "-n2"]], ids=["", "xdist"])
@pytest.mark.parametrize("method", METHODS)
def test_snapshots_are_compared_and_those_that_are_used_elsewhere_are_not_unused(
    pytester: pytest.Pytester, taken: dict[str, str], method: str, workers: list[str]
) -> None:
    if workers:
        needs("xdist")
    session = ["-p", needs("syrupy"), f"--cuda-fork-isolate={method}", *workers]
    result = run_session(pytester, *session)
    result.assert_outcomes(passed=2, warnings=1 if workers else 0)
    assert result.ret == pytest.ExitCode.OK
    pytester.makepyfile(test_it=SOURCE.replace("1", "2"))
    result = run_session(pytester, *session)
    result.assert_outcomes(passed=1, failed=1, warnings=1 if workers else 0)
    result.stdout.fnmatch_lines(["*-   'a': 1,", "*+   'a': 2,"])
    assert files_of(pytester.path) == taken


@pytest.mark.parametrize("option", ["--snapshot-update", "--snapshot-update-new-only"])
@pytest.mark.parametrize("method", METHODS)
def test_an_update_is_refused_and_nothing_is_deleted(
    pytester: pytest.Pytester, taken: dict[str, str], method: str, option: str
) -> None:
    session = ["-p", needs("syrupy"), option]
    result = run_session(pytester, *session, f"--cuda-fork-isolate={method}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {option}: no snapshot is written.*isolate=none"])
    assert files_of(pytester.path) == taken
    run_session(pytester, *session, "--cuda-fork-isolate=none").assert_outcomes(passed=2)


@pytest.mark.parametrize("method", METHODS)
def test_in_workers_an_update_fails_what_differs_and_is_warned_of(
    pytester: pytest.Pytester, taken: dict[str, str], method: str
) -> None:
    pytester.makepyfile(test_it=SOURCE.replace("1", "2"))
    session = ["-p", needs("syrupy"), "-p", needs("xdist"), "-n2", "--snapshot-update"]
    result = run_session(pytester, *session, f"--cuda-fork-isolate={method}")
    result.assert_outcomes(passed=1, failed=1, warnings=3)
    result.stdout.fnmatch_lines(["*PytestWarning: --snapshot-update: no snapshot is written.*"])
    assert files_of(pytester.path) == taken


@pytest.mark.parametrize("method", METHODS)
def test_snapshots_in_the_source_are_refused_likewise(
    pytester: pytest.Pytester, method: str
) -> None:
    plugin = needs("inline-snapshot")
    source = "from inline_snapshot import snapshot\ndef test_a(): assert 1 == snapshot(1)\n"
    path = pytester.makepyfile(test_it=source)
    session = ["-p", plugin, f"--cuda-fork-isolate={method}"]
    run_session(pytester, *session).assert_outcomes(passed=1)
    path.write_text(source.replace("(1)", "()"))
    result = run_session(pytester, *session, "--inline-snapshot=create")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --inline-snapshot=create: no snapshot is written.*"])
