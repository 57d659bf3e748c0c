"""Every graph specimen on the software graph: the buggy form is caught, the fixed one passes."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch

from tests.specimens.graphs import table
from tests.specimens.graphs.bench import Bench
from tests.specimens.graphs.catalog import CATALOG
from tests.specimens.graphs.corpus import GRAPH_BUGS
from tests.specimens.graphs.programs import PROGRAMS
from tests.specimens.graphs.run import SEEDS, assert_caught, assert_passes
from tests.specimens.graphs.specimen import HOME, GraphSpecimen

LEAST_MECHANISMS = 22
LEAST_PROGRAMS = 6
MOST_LINES_OF_A_FORM = 20
NOT_SPECIMENS = {
    *("__init__", "__main__", "bench", "catalog", "correct", "correct_kinds"),
    *("correct_pairs", "correct_tensors", "programs"),
    *("corpus", "engine", "run", "specimen", "table"),
}

each_specimen = pytest.mark.parametrize("specimen", CATALOG, ids=lambda specimen: specimen.name)
on_software = pytest.mark.parametrize(
    "specimen",
    [specimen for specimen in CATALOG if "software" in specimen.backends],
    ids=lambda specimen: specimen.name,
)
each_seed = pytest.mark.parametrize("seed", SEEDS)
software = pytest.mark.graph_capture(backends=["software"])


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Tensors here are small: threads would only wait for each other on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@software
@each_seed
@on_software
def test_the_buggy_form_is_caught(
    specimen: GraphSpecimen,
    seed: int,
    capture_pair: Callable[..., Any],
    record_property: Callable[[str, object], None],
) -> None:
    spoke = assert_caught(specimen, Bench(capture_pair, "software", seed))
    record_property("spoke", f"{specimen.name}: {' '.join(spoke)}")


@software
@each_seed
@on_software
def test_the_fixed_form_passes(
    specimen: GraphSpecimen, seed: int, capture_pair: Callable[..., Any]
) -> None:
    assert_passes(specimen, Bench(capture_pair, "software", seed))


@software
@each_seed
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_correct_program_raises_no_alarm(
    program: Callable[[Bench], None], seed: int, capture_pair: Callable[..., Any]
) -> None:
    program(Bench(capture_pair, "software", seed))


@each_specimen
def test_the_forms_differ_by_one_class_of_a_few_lines(specimen: GraphSpecimen) -> None:
    text = specimen.file.read_text(encoding="utf-8")
    bodies = [
        re.search(rf'^class {form}\(.*?""".*?"""(.*?)(?=^\S|\Z)', text, re.M | re.S)
        for form in ("Buggy", "Fixed")
    ]
    buggy, fixed = (body[1].strip() if body else "" for body in bodies)
    assert buggy
    assert fixed
    assert buggy != fixed
    assert max(buggy.count("\n"), fixed.count("\n")) < MOST_LINES_OF_A_FORM, "more than a repair"


@each_specimen
def test_a_module_says_which_bugs_it_stands_for(specimen: GraphSpecimen) -> None:
    words = " ".join(specimen.file.read_text(encoding="utf-8").partition('"""\n')[0].split())
    assert re.search(r"Stands for|A variation on", words)
    assert all(bug in words for bug in specimen.corpus), f"not all of {specimen.corpus}"


@each_specimen
def test_its_bugs_are_known_and_show_its_mechanism(specimen: GraphSpecimen) -> None:
    assert set(specimen.corpus) <= GRAPH_BUGS.keys()
    if "variation" not in specimen.note:
        assert specimen.mechanism in {GRAPH_BUGS[bug] for bug in specimen.corpus}


@each_specimen
def test_what_does_not_exist_on_a_backend_says_why(specimen: GraphSpecimen) -> None:
    assert "cuda" in specimen.backends
    assert ("software" in specimen.backends) == (not specimen.reason)


def test_the_catalog_lists_every_module_once_in_order() -> None:
    names = [specimen.name for specimen in CATALOG]
    modules = {path.stem for path in HOME.glob("*.py")} - NOT_SPECIMENS
    assert names == sorted(modules)
    assert len(names) >= LEAST_MECHANISMS
    assert len(PROGRAMS) >= LEAST_PROGRAMS


def test_the_page_of_the_documentation_is_up_to_date() -> None:
    assert table.PAGE.read_text(encoding="utf-8") == table.render(), (
        "docs/reference/graph-specimens.md is old: run `python -m tests.specimens.graphs.table`"
    )
