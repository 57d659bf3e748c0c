"""What plugins that report for themselves say of tests whose process dies: never nothing."""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support import leaps
from tests.support.isolation import METHODS
from tests.support.isolation_compare import Seen, Sessions
from tests.support.isolation_plugins import needs

SOURCE = """
import atexit
import os
import signal
import time

import pytest

def test_passes():
    pass

def test_fails():
    assert 0

def test_is_killed():
    print("before")
    os.kill(os.getpid(), signal.SIGKILL)

def test_exits():
    os._exit(0)

@pytest.mark.cuda_isolated(timeout=LIMIT)
def test_hangs():
    time_is_up()
    time.sleep(1000)

@pytest.fixture
def dying():
    os.abort()

def test_dies_in_setup(dying):
    pass

@pytest.fixture
def dying_late():
    yield
    os._exit(4)

def test_dies_in_teardown(dying_late):
    pass

def test_dies_when_it_is_over():
    atexit.register(os._exit, 7)

@pytest.mark.xfail(strict=True)
def test_dies_as_expected():
    os._exit(1)
"""

CALL_FAILED = ("test_fails", "test_is_killed", "test_exits", "test_hangs")
ERRORS = ("test_dies_in_setup", "test_dies_in_teardown", "test_dies_when_it_is_over")
FAILED = (*CALL_FAILED, *ERRORS)
"""The tests that no report may call passed, or leave out."""


def write_project(path: Path) -> None:
    """Write the files of a session."""
    (path / "pytest.ini").write_text("[pytest]\n")
    (path / "conftest.py").write_text(leaps.conftest(path / "leaps"))
    source = SOURCE.replace("LIMIT", str(leaps.LIMIT))
    (path / "test_it.py").write_text(leaps.module(path / "leaps") + source)


def of_html(path: Path, seen: Seen) -> dict[str, str]:
    """Return the worst that pytest-html says of each test, and look at its counts."""
    text = (path / "report.html").read_text(encoding="utf-8")
    found = re.search(r'data-jsonblob="([^"]*)"', text)
    assert found, text[:1000]
    data: dict[str, Any] = json.loads(html.unescape(found[1]))
    counts = dict(
        reversed(one) for one in re.findall(r">\s*(\d+) (Failed|Errors|Expected failures)", text)
    )
    assert counts == {"Failed": "4", "Errors": "3", "Expected failures": "1"}
    return {name: rows[-1]["result"].lower() for name, rows in data["tests"].items()}


def of_json_report(path: Path, seen: Seen) -> dict[str, str]:
    """Return what pytest-json-report says."""
    tests = json.loads((path / "report.json").read_text(encoding="utf-8"))["tests"]
    assert all("teardown" in one for one in tests)
    return {one["nodeid"]: one["outcome"] for one in tests}


def of_reportlog(path: Path, seen: Seen) -> dict[str, str]:
    """Return what pytest-reportlog says: the phases that did not pass, after all three."""
    phases: dict[str, list[str]] = {}
    for line in (path / "report.jsonl").read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        if one["$report_type"] == "TestReport":
            phases.setdefault(one["nodeid"], []).append(f"{one['when']} {one['outcome']}")
    assert all(any(one.startswith("teardown") for one in phase) for phase in phases.values())
    words = {"call failed": "failed", "setup failed": "error", "teardown failed": "error"}
    words["call skipped"] = "xfailed"
    return {
        name: next((words[one] for one in phase if one in words), "passed")
        for name, phase in phases.items()
    }


def of_allure(path: Path, seen: Seen) -> dict[str, str]:
    """Return what allure-pytest says last: "broken" is what is no failed assertion."""
    found: dict[str, tuple[int, str]] = {}
    for file in (path / "allure").glob("*-result.json"):
        one = json.loads(file.read_text(encoding="utf-8"))
        assert one["historyId"], one
        before = found.get(one["name"], (0, ""))
        found[one["name"]] = max(before, (one["stop"], one["status"]))
    twice = Counter(
        json.loads(file.read_text(encoding="utf-8"))["name"]
        for file in (path / "allure").glob("*-result.json")
    )
    assert {name for name, count in twice.items() if count > 1} == {"test_dies_when_it_is_over"}
    assert found["test_fails"][1] == "failed"
    words = {"broken": "failed", "skipped": "xfailed"}
    said = {name: words.get(status, status) for name, (_, status) in found.items()}
    return {
        f"test_it.py::{name}": "error" if name in ERRORS and status == "failed" else status
        for name, status in said.items()
    }


def of_instafail(path: Path, seen: Seen) -> dict[str, str]:
    """Return which tests pytest-instafail shows while the session runs; it counts no others."""
    text = "\n".join(seen.stdout)
    rules = re.findall(r"^___ (?:ERROR at (?:setup|teardown) of )?(test_\w+) ___$", text, re.M)
    assert Counter(rules) == Counter(FAILED)
    errors = set(re.findall(r"^___ ERROR at \w+ of (test_\w+) ___$", text, re.M))
    said = {f"test_it.py::{name}": "error" if name in errors else "failed" for name in rules}
    return {
        "test_it.py::test_passes": "passed",
        "test_it.py::test_dies_as_expected": "xfailed",
    } | said


EXPECTED = {
    "test_it.py::test_passes": "passed",
    "test_it.py::test_dies_as_expected": "xfailed",
    **{f"test_it.py::{name}": "failed" for name in CALL_FAILED},
    **{f"test_it.py::{name}": "error" for name in ERRORS},
}
TABLE = {
    "html": of_html,
    "json-report": of_json_report,
    "reportlog": of_reportlog,
    "allure": of_allure,
    "instafail": of_instafail,
}


@pytest.mark.parametrize("method", METHODS)
def test_every_test_that_dies_is_in_every_report(tmp_path: Path, method: str) -> None:
    modules = [needs(name) for name in ("metadata", *TABLE)]
    path = tmp_path / "project"
    path.mkdir()
    write_project(path)
    seen = Sessions(
        path,
        *("--html=report.html", "--self-contained-html", "--report-log=report.jsonl"),
        *("--json-report", "--json-report-file=report.json", "--alluredir=allure"),
        *("--clean-alluredir", "--instafail"),
        plugins=modules,
    ).run(method)
    assert any("4 failed, 3 passed, 1 xfailed, 3 errors" in line for line in seen.stdout)
    said = {name: of(path, seen) for name, of in TABLE.items()}
    assert said == dict.fromkeys(TABLE, EXPECTED)


@pytest.mark.parametrize("method", METHODS)
def test_sugar_counts_and_shows_tests_that_die(tmp_path: Path, method: str) -> None:
    module = needs("sugar")
    write_project(tmp_path)
    seen = Sessions(tmp_path, "--force-sugar", plugins=[module]).run(method)
    text = re.sub(r"\x1b\[[\d;]*m", "", "\n".join(seen.stdout))
    for name in FAILED:
        assert re.search(rf"^___.* {name} ___$|― .*{name} ―", text, re.M), f"{name}\n{text}"
    assert re.search(r"4 failed", text), text
    assert re.search(r"3 errors?", text), text
    assert seen.status[0] == "1"
