"""Tests of which isolated tests share a process."""

from __future__ import annotations

import itertools
import sys
from types import ModuleType

import pytest

from pytest_cudafork.isolate.groups import scope_of, share_process
from tests.unit.isolate.session import items_of

SUITE = """
import pytest
def isolated(method='fork', **how): return pytest.mark.cuda_isolated(method=method, **how)
class TestA:
    @isolated(scope="class")
    def test_class_1(self): pass
    @isolated(scope="class", timeout=3)
    def test_class_2(self): pass
    @isolated(scope="module")
    def test_module_1(self): pass
@isolated(scope="module")
def test_module_2(): pass
@isolated(scope="module", method="spawn")
def test_spawned_1(): pass
@isolated(scope="module", method="spawn")
@pytest.mark.gpus(1)
def test_gpu_1(): pass
@isolated(scope="module", method="spawn")
@pytest.mark.gpus(1)
def test_gpu_2(): pass
@isolated(scope="module", method="spawn")
@pytest.mark.spawn_only
def test_only_1(): pass
@isolated(scope="class", method="spawn")
def test_plain_1(): pass
@isolated(scope="class", method="spawn")
def test_plain_2(): pass
@isolated(scope="file")
def test_wrong_1(): pass
@isolated()
def test_silent_1(): pass
@isolated()
def test_silent_2(): pass
"""


def pairs(items: list[pytest.Item]) -> list[tuple[str, str]]:
    """The neighbors that share a process."""
    both = itertools.pairwise(items)
    return [(one.name[5:], other.name[5:]) for one, other in both if share_process(one, other)]


def test_neighbors_share_a_process_that_ask_for_the_same_one(pytester: pytest.Pytester) -> None:
    assert pairs(items_of(pytester, SUITE)) == [
        ("class_1", "class_2"),
        ("module_1", "module_2"),
        ("gpu_1", "gpu_2"),
    ]


def test_the_session_speaks_for_tests_whose_markers_do_not(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ncuda_fork_isolate_scope = module")
    items = items_of(pytester, SUITE)
    assert [scope_of(item) for item in items[-3:]] == ["module"] * 3
    assert ("silent_1", "silent_2") in pairs(items)
    assert scope_of(items[0]) == "class"


def test_tests_of_two_files_share_nothing(pytester: pytest.Pytester) -> None:
    mark = "@pytest.mark.cuda_isolated(method='fork', scope='module')"
    source = f"import pytest\n{mark}\ndef test_x(): pass\n"
    other = pytester.path / "test_other.py"
    other.write_text(source)
    items = items_of(pytester, source + source.replace("test_x", "test_y"), str(other))
    assert [item.name for item in items] == ["test_x", "test_x", "test_y"]
    assert pairs(items) == [("x", "y")]


STEPS = """
import pytest
@pytest.mark.cuda_isolated(method="fork")
@pytest.mark.parametrize("________step_name_", ["one", "two"])
@pytest.mark.parametrize("n", [1, 2])
def test_steps(n, ________step_name_): pass
@pytest.mark.cuda_isolated(method="fork", fixtures="inherit")
@pytest.mark.parametrize("test_step", ["one", "two"])
def test_bodies(test_step): pass
"""


def test_steps_of_one_function_share_a_process_whatever_the_scope(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = items_of(pytester, STEPS)
    monkeypatch.delitem(sys.modules, "pytest_steps", raising=False)
    assert pairs(items) == []
    monkeypatch.setitem(sys.modules, "pytest_steps", ModuleType("pytest_steps"))
    assert pairs(items) == [(f"steps[{n}-one]", f"steps[{n}-two]") for n in (1, 2)]
