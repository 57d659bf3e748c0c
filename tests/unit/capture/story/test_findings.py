"""What is found is kept once, and told with its place and what to do."""

from __future__ import annotations

from pathlib import Path

from pytest_cudafork.capture.interface.backend import CaptureFinding
from pytest_cudafork.capture.story.findings import (
    CheckLog,
    failure_text,
    finding_lines,
    source_of,
)


def test_an_equal_finding_is_noted_once() -> None:
    log = CheckLog()
    for _ in range(2):
        log.add("aliased-state", "it is shared", path="state.plan")
    log.add("lazy-init-skipped", "it is set", path="state.plan")
    for _ in range(2):
        log.add("capture-failed", "no path")
    names = [found.check for found in log.findings]
    assert names == ["aliased-state", "lazy-init-skipped", "capture-failed", "capture-failed"]


def test_what_ran_and_what_could_not_is_kept() -> None:
    log = CheckLog()
    log.did("aliased-state", "not-shared")
    log.did("aliased-state")
    log.cannot("not-shared (x)", "first reason")
    log.cannot("not-shared (x)", "second reason")
    log.note("a note")
    log.note("a note")
    assert list(log.ran) == ["aliased-state", "not-shared"]
    assert log.skipped == {"not-shared (x)": "first reason"}
    assert log.notes == ["a note"]


def test_a_finding_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "code.py"
    path.write_text("x = 1\nplan = None  # here\n", encoding="utf-8")
    finding = CaptureFinding(
        "aliased-state", "it is shared", "state.plan", f"{path}:2", "why", "do"
    )
    lines = finding_lines(finding)
    assert lines[0] == "[aliased-state] state.plan: it is shared"
    assert "        > plan = None  # here" in lines
    assert lines[-2:] == ["    why", "    what to do: do"]
    assert finding_lines(finding, brief=True)[-1].endswith("as above")
    assert source_of("nowhere") == source_of(f"{path}:99") == ""


def test_a_path_that_the_sentence_begins_with_is_not_repeated() -> None:
    finding = CaptureFinding("not-shared", "x lies elsewhere", "x")
    assert finding_lines(finding) == ["[not-shared] x lies elsewhere"]


def test_a_failure_lists_findings_notes_and_what_was_not_checked() -> None:
    found = [
        CaptureFinding("aliased-state", "one", "a", why="the same", todo="do"),
        CaptureFinding("aliased-state", "two", "b", why="the same", todo="do"),
    ]
    log = CheckLog()
    for each in found:
        log.add_finding(each)
    log.cannot("not-shared", "no inputs")
    log.note("a note")
    text = failure_text("it fails", log, "software", "in places")
    assert text.startswith("it fails: 2 findings (software graph)")
    assert text.count("what to do: do") == 1
    assert text.count("as above") == 1
    assert "note: a note\nnot checked: not-shared: no inputs\nthis is the verdict" in text
    one = CheckLog()
    one.add_finding(found[0])
    alone = failure_text("it fails", one, "cuda")
    assert alone.startswith("it fails: 1 finding (cuda graph)")
    assert "verdict" not in alone
