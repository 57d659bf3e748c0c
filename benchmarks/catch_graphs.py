"""The graph specimens by what torch alone refuses, by a look at captures, and by our checks.

The part of ``catch_rate.py`` that is about captured graphs.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
from catch_words import Verdict

from tests.specimens.graphs.catalog import CATALOG as SPECIMENS
from tests.specimens.plain_graphs.catalog import CATALOG as PROGRAMS
from tests.specimens.plain_graphs.catalog import PlainGraph
from tests.specimens.plain_graphs.run import Told, lay_out, look_at_captures, run_session

_T = TypeVar("_T")
METHODS = ("capture", "look", "checks")
_TESTS = Path(__file__).resolve().parents[1] / "tests"
_FILES = {
    "software": _TESTS / "specimens" / "test_graph_specimens.py",
    "cuda": _TESTS / "gpu" / "test_graph_specimens_on_gpu.py",
}


def names() -> list[str]:
    """Return the names of all specimens of graphs."""
    return [each.name for each in PROGRAMS]


def measure(backend: str, only: str, folder: Path, jobs: int) -> dict[str, dict[str, Verdict]]:
    """Return what each method says of each specimen whose name holds a word.

    Args:
        backend: ``software`` or ``cuda``.
        only: The word.
        folder: An empty folder.
        jobs: How many sessions run at once.

    """
    programs = [
        each for each in PROGRAMS if only in each.name and (backend == "cuda" or not each.streams)
    ]
    chosen = [each.name for each in programs]
    found: dict[str, dict[str, Verdict]] = {name: {} for name in chosen}
    if not chosen:
        return found
    groups = {form: _groups(form, backend, chosen) for form in _FORMS}
    with ThreadPoolExecutor(jobs) as pool:  # what runs is sessions of their own
        alone = {
            form: _each(
                pool, partial(_failing, form, backend), groups[form], folder / "alone" / form
            )
            for form in _FORMS
        }
        looked = {
            form: _each(
                pool, partial(look_at_captures, form, backend), groups[form], folder / "look" / form
            )
            for form in _FORMS
        }
    checked = _checked(backend, only)
    for each in programs:
        failed = alone["buggy"][each.name]
        found[each.name] = {
            "capture": Verdict(bool(failed), _names(each, failed), bool(alone["fixed"][each.name])),
            "look": _look(each, looked["buggy"][each.name], looked["fixed"][each.name]),
            "checks": checked[each.name],
        }
    return found


_FORMS = ("buggy", "fixed")


def _names(program: PlainGraph, text: str) -> bool:
    return Told(bool(text), False, text).names(program.named_lines)


def _look(program: PlainGraph, buggy: Told, fixed: Told) -> Verdict:
    told = buggy.fails or buggy.listed
    alarm = fixed.fails or fixed.listed
    return Verdict(told, told and buggy.names(program.named_lines), alarm)


def _groups(form: str, backend: str, names: list[str]) -> list[list[str]]:
    """Return the names in groups for one session each.

    A failed capture may leave CUDA's allocator unable to serve another, so there each buggy program
    is alone.
    """
    return [[name] for name in names] if (form, backend) == ("buggy", "cuda") else [names]


def _each(
    pool: Executor,
    ask: Callable[[list[str], Path], dict[str, _T]],
    groups: list[list[str]],
    folder: Path,
) -> dict[str, _T]:
    """Ask for each group, with a folder of its own, and return all answers by name."""
    places = [folder / str(number) for number in range(len(groups))]
    return {name: one for found in pool.map(ask, groups, places) for name, one in found.items()}


def _failing(form: str, backend: str, names: list[str], folder: Path) -> dict[str, str]:
    """Return with what each program's own test fails when nobody looks at its captures."""
    lay_out(form, folder)
    told, _ = run_session(folder, backend, *(f"test_{name}.py" for name in names))
    return {name: told[f"test_{name}"] for name in names}


class _Outcomes:
    """Collects which specimens' forms passed their tests, on all seeds: a plugin for one run."""

    def __init__(self) -> None:
        self.failed: set[tuple[str, str]] = set()
        self.seen: set[tuple[str, str]] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what a test of a form came to."""
        test, _, parameters = report.nodeid.partition("::")[2].partition("[")
        form = "buggy" if test.startswith("test_the_buggy_form") else "fixed"
        if not test.startswith(("test_the_buggy_form", "test_the_fixed_form")):
            return
        for name in {each.name for each in SPECIMENS} & set(parameters.rstrip("]").split("-")):
            self.seen.add((name, form))
            if not report.passed:
                self.failed.add((name, form))


def _checked(backend: str, only: str) -> dict[str, Verdict]:
    """Run the tests of the specimens, whose buggy form must be told by its checks and its line."""
    outcomes = _Outcomes()
    options = ["-q", "-p", "no:cacheprovider", "-m", "", str(_FILES[backend])]
    # This process has imported some of the tests' modules, whose asserts are then as Python's.
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main(options, plugins=[outcomes])
    found = {}
    for each in SPECIMENS:
        told = (each.name, "buggy") in outcomes.seen - outcomes.failed
        alarm = (each.name, "fixed") not in outcomes.seen - outcomes.failed
        found[each.name] = Verdict(told, told, alarm)
    return {name: verdict for name, verdict in found.items() if only in name}
