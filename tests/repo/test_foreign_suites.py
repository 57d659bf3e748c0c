"""The comparison of other packages' suites, plain and isolated: what counts as a difference."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from tools import foreign_suites
from tools.foreign_suites import Suite, SuiteError


def _log(path: Path, *entries: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
    return path


def _phase(nodeid: str, when: str, outcome: str, **more: object) -> dict[str, object]:
    return {
        "$report_type": "TestReport",
        "nodeid": nodeid,
        "when": when,
        "outcome": outcome,
        **more,
    }


def test_outcomes_tell_all_phases_xfails_and_errors_of_collection(tmp_path: Path) -> None:
    log = _log(
        tmp_path / "log.jsonl",
        {"$report_type": "SessionStart"},
        {"$report_type": "CollectReport", "nodeid": "test_broken.py", "outcome": "failed"},
        {"$report_type": "CollectReport", "nodeid": "test_a.py", "outcome": "passed"},
        _phase("test_a.py::test", "setup", "passed"),
        _phase("test_a.py::test", "call", "skipped", wasxfail="why"),
        _phase("test_a.py::test", "teardown", "failed"),
        _phase("test_a.py::test[20:25:58 2026-11-22]", "call", "passed"),
    )
    assert foreign_suites.outcomes_of(log) == {
        "collecting test_broken.py": "failed",
        "test_a.py::test": "setup passed, call skipped xfail, teardown failed",
        "test_a.py::test[HH:MM:SS 2026-11-22]": "call passed",
    }


@pytest.mark.parametrize(
    ("isolated", "lines"),
    [
        ({"a": "passed", "b": "failed", "flaky": "passed"}, []),
        ({"a": "failed", "b": "failed"}, ["a: passed -> failed"]),
        ({"b": "failed"}, ["a: passed -> not there"]),
        ({"a": "passed", "b": "failed", "c": "passed"}, ["c: not there -> passed"]),
    ],
)
def test_a_test_that_is_missing_new_or_otherwise_differs(
    isolated: dict[str, str], lines: list[str]
) -> None:
    first = {"a": "passed", "b": "failed", "flaky": "passed"}
    second = {"a": "passed", "b": "failed", "flaky": "failed"}
    assert foreign_suites.compare((first, second), isolated) == lines


def test_the_sources_of_the_package_are_not_beside_its_tests(tmp_path: Path) -> None:
    suite = Suite("more-things", "1.0")
    with pytest.raises(SuiteError, match=r"no source archive of more-things==1\.0"):
        foreign_suites.unpack(tmp_path, suite)
    (tmp_path / "archives").mkdir()
    with tarfile.open(tmp_path / "archives" / "more_things-1.0.tar.gz", "w:gz") as archive:
        for name in ("src/more_things.py", "tests/test_it.py"):
            archive.addfile(tarfile.TarInfo(f"more_things-1.0/{name}"), io.BytesIO())
    root = foreign_suites.unpack(tmp_path, suite)
    assert [path.name for path in root.rglob("*.py")] == ["test_it.py"]
    with pytest.raises(SuiteError, match="has no testing"):
        foreign_suites.unpack(tmp_path, Suite("more-things", "1.0", ("testing",)))
