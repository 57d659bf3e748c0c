"""The graph programs: each kind of bug is among them, and the checks give each its verdict."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from collections.abc import Iterator

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch

from tests.specimens.graph_programs.catalog import CLASSES, PROGRAMS
from tests.specimens.graph_programs.program import Verdict
from tests.specimens.graph_programs.run import expected_outcomes, judge
from tests.specimens.graphs.corpus import GRAPH_BUGS
from tests.support.torch_compile import compiling_here

LEAST_PROGRAMS = 310


def test_there_are_many_and_each_has_its_own_name() -> None:
    assert len(PROGRAMS) >= LEAST_PROGRAMS
    assert [name for name, count in Counter(p.name for p in PROGRAMS).items() if count > 1] == []


def test_each_known_bug_has_a_program_with_its_mechanism() -> None:
    assert {p.corpus for p in PROGRAMS if p.corpus} == set(GRAPH_BUGS)


def test_each_bug_stands_beside_its_repair() -> None:
    verdicts = {program.name: program.verdict for program in PROGRAMS}
    buggy = [name for name in verdicts if name.endswith("-buggy")]
    assert len(buggy) > len(set(GRAPH_BUGS.values()))
    for name in buggy:
        assert verdicts[name] is not Verdict.RIGHT
        assert verdicts[name.replace("-buggy", "-fixed")] is Verdict.RIGHT


def test_each_class_says_what_runs_and_where() -> None:
    for programs in CLASSES.values():
        assert programs
        for program in programs:
            assert program.why
            assert "cuda" in program.backends
            assert set(program.documented) <= set(program.backends)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Tensors here are small: threads would only wait for each other on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def plain_compiler() -> Iterator[None]:
    """Let the compiler be plain: what it makes of a program is a few kernels, not under test."""
    with compiling_here(plain=True):
        yield


@pytest.mark.usefixtures("one_thread", "plain_compiler")
@pytest.mark.parametrize("kind", CLASSES)
def test_each_program_gets_its_verdict_on_the_software_graph(kind: str) -> None:
    wrong = {}
    for program in PROGRAMS:
        if program.name.startswith(f"{kind}: ") and "software" in program.backends:
            outcome, words = judge(program, "software")
            if outcome not in expected_outcomes(program, "software"):
                wrong[program.name] = f"{outcome}, but {program.verdict.value}: {words}"
    assert not wrong, json.dumps(wrong, indent=1).replace("\\n", "\n")
