"""GitHub's commands are one line each, escaped; the summary of a step stays within its size."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from pytest_cudafork.documents.github import annotation_lines, step_summary
from pytest_cudafork.documents.problem import ERROR, NOTE, WARNING, Place, Problem


def test_each_problem_is_a_command_at_its_line_the_worst_first() -> None:
    problems = [
        Problem("touch-at-import", NOTE, "a note", place=Place("/w/a.py", 2)),
        Problem("touch", ERROR, "first\nsecond, 50%", place=Place("/w/b,c.py", 7)),
        Problem("not-observable", WARNING, "not seen"),
        Problem("touch", ERROR, "elsewhere", place=Place("/usr/x.py", 1)),
        Problem("touch", ERROR, "known", accepted="in the baseline"),
    ]
    assert annotation_lines(problems, "/w") == [
        "::error file=b%2Cc.py,line=7,title=CUDA and fork%3A touch::first%0Asecond, 50%25",
        "::error file=/usr/x.py,line=1,title=CUDA and fork%3A touch::elsewhere",
        "::warning title=CUDA and fork%3A not-observable::not seen",
        "::notice file=a.py,line=2,title=CUDA and fork%3A touch-at-import::a note",
    ]


def test_a_workspace_that_is_a_link_is_where_the_files_are(tmp_path: Path) -> None:
    """As on runners whose working folder lies on another disk: Python names files by that."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "work").symlink_to("disk")
    problems = [Problem("touch", ERROR, "m", place=Place(f"{tmp_path}/disk/t/a.py", 7))]
    (line,) = annotation_lines(problems, f"{tmp_path}/work")
    assert line.startswith("::error file=t/a.py,line=7,")


@given(st.text(), st.text())
def test_no_text_breaks_out_of_its_line(message: str, file: str) -> None:
    place = Place(f"/w/{file}", 1)
    (line,) = annotation_lines([Problem("touch", ERROR, message, place=place)], "/w")
    assert "\n" not in line
    assert "\r" not in line
    properties = line.removeprefix("::error ").split("::")[0]
    assert properties.count(",") == 2
    assert line.startswith("::error file=")


def test_the_summary_tells_each_story_and_no_story_is_markup() -> None:
    problem = Problem("touch", ERROR, "at <module>", "a\n  <b>")
    known = Problem("touch", NOTE, "old", accepted="in the baseline")
    text = step_summary("CUDA", "1 failed", [problem, known])
    assert text.startswith("### CUDA\n\n1 failed\n")
    assert "<summary>error: at &lt;module&gt;</summary>" in text
    assert "<pre>a\n  &lt;b&gt;</pre>" in text
    assert "<summary>accepted: old</summary>" in text


def test_a_summary_that_would_be_dropped_is_cut_and_says_so() -> None:
    many = [Problem("touch", ERROR, f"number {n}") for n in range(60)]
    assert step_summary("t", "n", many).endswith("... and 10 more\n")
    big = [Problem("touch", ERROR, "big", "x" * (1 << 18))] * 5
    text = step_summary("t", "n", big)
    assert len(text) < 1 << 20
    assert "... and 4 more" in text
