"""Every graph specimen on real CUDA graphs: the buggy form is caught, the fixed one passes.

``python -m tests.specimens.graphs --cuda --save`` runs this file and keeps a record.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

from tests.specimens.graphs.bench import Bench
from tests.specimens.graphs.catalog import CATALOG
from tests.specimens.graphs.programs import PROGRAMS
from tests.specimens.graphs.run import SEEDS, assert_caught, assert_passes
from tests.specimens.graphs.specimen import GraphSpecimen

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.graph_capture(backends=["cuda"]),
]

each_specimen = pytest.mark.parametrize("specimen", CATALOG, ids=lambda specimen: specimen.name)
each_seed = pytest.mark.parametrize("seed", SEEDS)


@each_seed
@each_specimen
def test_the_buggy_form_is_caught(
    specimen: GraphSpecimen,
    seed: int,
    capture_pair: Callable[..., Any],
    record_property: Callable[[str, object], None],
) -> None:
    spoke = assert_caught(specimen, Bench(capture_pair, "cuda", seed))
    record_property("spoke", f"{specimen.name}: {' '.join(spoke)}")


@each_seed
@each_specimen
def test_the_fixed_form_passes(
    specimen: GraphSpecimen, seed: int, capture_pair: Callable[..., Any]
) -> None:
    assert_passes(specimen, Bench(capture_pair, "cuda", seed))


@each_seed
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_correct_program_raises_no_alarm(
    program: Callable[[Bench], None], seed: int, capture_pair: Callable[..., Any]
) -> None:
    program(Bench(capture_pair, "cuda", seed))
