"""The words of a failure and of a suspicion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytest_cudafork.capture.in_tests import words


def finding(file: Path, **changes: Any) -> dict[str, Any]:
    lines = [["computed at", f"{file}:1"], ["read by the graph at", ""]]
    told = {"kind": "stale-data", "what": "it is old", "lines": lines, "why": "W.", "todo": "T."}
    return {**told, **changes}


def test_a_failure_has_all_findings_with_their_lines_and_reasons_once(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("plan = lengths.cumsum(0)\n")
    text = words.failure([finding(file), finding(file, what="it is older")])
    assert text.startswith(
        "2 findings in what this test captured and replayed\n\n[stale-data] it is"
    )
    assert (
        "        > plan = lengths.cumsum(0)\n    read by the graph at no line of user code" in text
    )
    assert text.count("W.") == 1
    assert text.count("what to do: T.") == 1
    assert "# captures: ignore" in text
    assert words.headline([finding(file)]) == "[stale-data] it is old"
    assert words.headline([finding(file)] * 3) == "[stale-data] it is old (and 2 more)"
    assert words.failure([finding(file, why="", todo="")]).startswith("1 finding in")


def test_a_suspicion_names_a_test(tmp_path: Path) -> None:
    found = finding(tmp_path / "a.py")
    assert words.suspicion(found, ["t::a"])[-1] == "    seen in t::a"
    assert words.suspicion(found, ["t::a", "t::b"])[-1] == "    seen in t::a and 1 more"


def test_reasons_why_values_were_not_judged_are_cut_unless_all_are_asked_for() -> None:
    assert words.gaps({}, 7) == []
    reasons = {"rare": 1, "a kernel": 4, "gone": 2, "from a file": 3}
    first, *others = words.gaps(reasons, 20, rest=" (-v shows them)")
    assert first.startswith("not judged: 10 of 20 values that graphs read and that lines before")
    shown = ["    a kernel", "    from a file", "    gone"]
    assert others == [*shown, "    and 1 more (-v shows them)"]
    assert words.gaps(reasons, 20, full=True)[1:] == [*shown, "    rare"]


def test_a_check_that_failed_is_counted_apart_from_values() -> None:
    reasons = {"the check failed: KeyError: 'x'": 3, "a kernel": 4}
    assert words.gaps(reasons, 20)[1:] == [
        "    a kernel",
        "not judged: what checks would have found that failed themselves, 3 times",
        "    KeyError: 'x'",
    ]
    assert words.gaps({"the check failed: KeyError: 'x'": 1}, 0)[0].endswith("themselves, 1 time")
