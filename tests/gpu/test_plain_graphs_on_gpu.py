"""The plain graph programs on real CUDA graphs: buggy ones answer wrongly, fixed ones rightly.

Buggy ones that CUDA itself refuses run in sessions of their own, for a failed capture may leave the
allocator unable to serve another.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

from tests.specimens.plain_graphs.catalog import CATALOG, Verdict
from tests.specimens.plain_graphs.run import look_at_captures, wrong_answers

pytestmark = pytest.mark.gpu
LEAST_TOLD = 20
REFUSED = [program.name for program in CATALOG if program.verdict is Verdict.REFUSED]
OTHERS = [program.name for program in CATALOG if program.verdict is not Verdict.REFUSED]


@pytest.mark.parametrize("name", REFUSED)
def test_a_program_that_cuda_refuses_raises(name: str, tmp_path: Path) -> None:
    assert wrong_answers("buggy", "cuda", [name], tmp_path) == {name}


def test_the_other_buggy_programs_answer_wrongly(tmp_path: Path) -> None:
    assert wrong_answers("buggy", "cuda", OTHERS, tmp_path) == set(OTHERS)


def test_the_fixed_programs_answer_rightly(tmp_path: Path) -> None:
    names = [program.name for program in CATALOG]
    assert wrong_answers("fixed", "cuda", names, tmp_path) == set()


def test_a_look_at_the_captures_tells_the_lines_of_buggy_programs(tmp_path: Path) -> None:
    found = look_at_captures("buggy", "cuda", OTHERS, tmp_path / "others")
    for name in REFUSED:
        found |= look_at_captures("buggy", "cuda", [name], tmp_path / name)
    lines = {program.name: program.named_lines for program in CATALOG}
    told = [name for name, each in found.items() if lines[name] and each.names(lines[name])]
    assert len(told) >= LEAST_TOLD, {name: found[name] for name in set(found) - set(told)}


def test_a_look_at_the_captures_of_fixed_programs_says_nothing(tmp_path: Path) -> None:
    names = [program.name for program in CATALOG]
    found = look_at_captures("fixed", "cuda", names, tmp_path)
    assert {name: told for name, told in found.items() if told.fails or told.listed} == {}
