"""The plain graph programs: a buggy one answers wrongly, a fixed one as eager code does."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import pytest

from tests.specimens.graphs import catalog as specimens
from tests.specimens.graphs import table
from tests.specimens.plain_graphs.catalog import CATALOG, HOME, MARKER, PlainGraph, Verdict
from tests.specimens.plain_graphs.run import Told, look_at_captures, wrong_answers

each_program = pytest.mark.parametrize("program", CATALOG, ids=lambda program: program.name)
needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)
SPECIMENS = {specimen.name: specimen for specimen in specimens.CATALOG}


@pytest.mark.slow
@needs_torch
@pytest.mark.parametrize("form", ["buggy", "fixed"])
def test_the_answers_are_wrong_where_there_is_a_bug_and_nowhere_else(
    form: str, tmp_path: Path
) -> None:
    names = [program.name for program in CATALOG if not program.streams]
    wrong = wrong_answers(form, "software", names, tmp_path)
    assert wrong == (set(names) if form == "buggy" else set())


LEAST_TOLD = 20
"""Without those whose capture fails by itself."""


@pytest.mark.slow
@needs_torch
def test_a_look_at_the_captures_of_buggy_programs_gives_the_verdicts(tmp_path: Path) -> None:
    programs = [program for program in CATALOG if not program.streams]
    found = look_at_captures("buggy", "software", [each.name for each in programs], tmp_path)
    wrong = {each.name: found[each.name] for each in programs if not as_meant(each, found)}
    assert not wrong
    silent = (Verdict.OUT_OF_REACH, Verdict.REFUSED)
    assert sum(each.said not in silent for each in programs) >= LEAST_TOLD


@pytest.mark.slow
@needs_torch
def test_a_look_at_the_captures_of_fixed_programs_says_nothing(tmp_path: Path) -> None:
    names = [program.name for program in CATALOG if not program.streams]
    found = look_at_captures("fixed", "software", names, tmp_path)
    assert {name: told for name, told in found.items() if told.fails or told.listed} == {}


def as_meant(program: PlainGraph, found: dict[str, Told]) -> bool:
    """Whether what is said of a program is its verdict, with one of its lines."""
    told = found[program.name]
    if program.said is Verdict.OUT_OF_REACH:
        return not told.fails and not told.listed
    fails = program.said is not Verdict.SUSPICION
    return told.fails is fails and told.names(program.named_lines)


def test_every_graph_specimen_is_there_once() -> None:
    assert [program.name for program in CATALOG] == [each.name for each in specimens.CATALOG]
    assert {path.stem for path in (HOME / "fixed").glob("*.py")} == set(SPECIMENS)
    assert {path.stem for path in (HOME / "buggy").glob("*.py")} == {
        *SPECIMENS,
        *(f"test_{name}" for name in SPECIMENS),
        "paged",
    }


@each_program
def test_a_program_has_the_bug_of_its_specimen(program: PlainGraph) -> None:
    for form in ("buggy", "fixed"):
        text = (HOME / form / f"{program.name}.py").read_text(encoding="utf-8")
        said = " ".join((ast.get_docstring(ast.parse(text)) or "").split())
        assert all(bug in said for bug in SPECIMENS[program.name].corpus), said


@each_program
def test_the_forms_differ_by_a_repair_of_a_few_lines(program: PlainGraph) -> None:
    buggy, fixed = (
        re.sub(rf" *{MARKER}", "", (HOME / form / f"{program.name}.py").read_text("utf-8"))
        for form in ("buggy", "fixed")
    )
    one, other = set(buggy.splitlines()), set(fixed.splitlines())
    assert buggy != fixed
    assert len(one ^ other) <= 12, "more than a repair"


@each_program
def test_a_program_knows_nothing_of_the_plugin(program: PlainGraph) -> None:
    for path in (HOME / "buggy" / f"{program.name}.py", HOME / "buggy" / f"test_{program.name}.py"):
        assert "cudafork" not in path.read_text(encoding="utf-8")


@each_program
def test_a_line_is_marked_where_one_must_be_named(program: PlainGraph) -> None:
    meant_or_said = {program.verdict, program.said} != {Verdict.OUT_OF_REACH}
    assert bool(program.named_lines) is meant_or_said
    fixed = (HOME / "fixed" / f"{program.name}.py").read_text(encoding="utf-8")
    assert MARKER not in fixed
    assert bool(program.caught_by) == (program.said is Verdict.OUT_OF_REACH)


@each_program
def test_the_check_that_catches_it_is_the_one_that_its_specimen_calls(program: PlainGraph) -> None:
    called = {"capture_pair": "bench.capture_pair(", "assert_replay_equals_eager": "bench.replay("}
    if program.caught_by:
        text = SPECIMENS[program.name].file.read_text(encoding="utf-8")
        assert called[program.caught_by] in text


def test_the_page_of_the_documentation_lists_them() -> None:
    assert table.plain_rows()[2].startswith("| `attribute_rebound` | error |")
    assert table.PAGE.read_text(encoding="utf-8") == table.render()
