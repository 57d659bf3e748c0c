"""The table of what works together is what the tool writes, and the tool tells what differs."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from tools.compatibility import BEGIN, END, PAGE, ROWS, Row, Verdict, outcomes, shown, table


def test_the_page_has_each_row_with_a_word() -> None:
    text = PAGE.read_text(encoding="utf-8")
    written = text[text.index(BEGIN) : text.index(END)]
    lines = [line for line in written.splitlines() if line.startswith("| ")][1:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [row[0] for row in cells] == [row.name for row in ROWS]
    words = {"works", "does not work", "untried"}
    assert {word for row in cells for word in row[1:3]} <= words
    for _, plain, isolated, *_, day, _ in cells:
        tried = {plain, isolated} != {"untried"}
        assert re.fullmatch(r"20\d\d-\d\d-\d\d" if tried else "-", day), "each row has its own day"


def test_a_row_that_was_not_tried_again_keeps_what_it_had() -> None:
    verdict = Verdict(ROWS[0], "works", "does not work", {"pytest": "7.4.4"}, "it broke\nthere")
    first = table([verdict], "")
    day = re.findall(r"20\d\d-\d\d-\d\d", first)
    assert len(day) == 1
    assert f"| pytest 7.4 | works | does not work | pytest 7.4.4 | {day[0]} | it broke |" in first
    assert "| pytest 8.4 | untried | untried | - | - |  |" in first
    earlier = first.replace(day[0], "2001-02-03")
    second = table([Verdict(ROWS[1], "works", "works", {"pytest": "8.4.2"})], earlier)
    assert "| works | does not work | pytest 7.4.4 | 2001-02-03 | it broke |" in second
    assert re.search(
        r"\| pytest 8.4 \| works \| works \| pytest 8.4.2 \| 2\d{3}-[-\d]+ \|  \|", second
    )
    third = table([Verdict(ROWS[1], why="not to be had")], second)
    assert "| pytest 8.4 | untried | untried | - | - | not to be had |" in third


def test_only_what_a_row_names_is_shown_with_its_version() -> None:
    row = Row("a plugin", ("pytest==9.2.*", "pytest-timeout"))
    verdict = Verdict(row, "works", "works", {"pip": "1", "pytest": "9.2.0", "pytest-timeout": "2"})
    said = "| a plugin | works | works | pytest 9.2.0, pytest-timeout 2 | 2001-02-03 |  |"
    assert shown(verdict, "2001-02-03") == said


def test_of_a_test_that_was_run_again_the_last_outcome_counts(tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    case = '<testcase classname="c" name="{}">{}</testcase>'
    cases = (("a", ""), ("a", "<failure/>"), ("b", "<skipped/>"), ("c", ""), ("d", "<error/>"))
    inner = "".join(case.format(*each) for each in cases)
    junit.write_text(f"<testsuites><testsuite>{inner}</testsuite></testsuites>", encoding="utf-8")
    assert outcomes(junit) == Counter(failed=2, skipped=1, passed=1)
