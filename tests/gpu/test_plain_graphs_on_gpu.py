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
from tests.specimens.plain_graphs.run import wrong_answers

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not Path("/dev/nvidiactl").exists(), reason="needs an NVIDIA driver: no /dev/nvidiactl here"
    ),
]
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
