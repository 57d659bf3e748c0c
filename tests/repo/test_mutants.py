"""Faults are put where they are meant, and found again after a move, as are their tests."""

from __future__ import annotations

import ast
import json
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.repo.tools_support import load

SOURCE = '''\
"""A module, 1 < 2."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    LIMIT = 1


class Locks:
    def take(self, name, *, wait: "1 < 2" = True):
        """Take 1 + 1 locks."""
        if not wait and name in (
            self.held
        ):
            raise ValueError(f"{name} is held, {1 + 1}")  # a word
        log.warning("held %d", 1 + 1)
        self.count = len(name) + 1; self.held.append(name)
        return name
'''


@pytest.fixture(scope="module")
def mutations() -> ModuleType:
    return load("mutations")


@pytest.fixture(scope="module")
def mutants() -> ModuleType:
    return load("mutants")


def test_faults_are_put_into_code_that_runs_and_not_into_words(mutations: ModuleType) -> None:
    found = [
        (fault.kind, fault.place.statement, fault.mutated)
        for fault in mutations.faults(ast.parse(SOURCE))
    ]
    condition = "if not wait and name in self.held:\n    ..."
    assert found == [
        ("and, or", condition, "if not wait or name in self.held:\n    ..."),
        ("negation", condition, "if wait and name in self.held:\n    ..."),
        ("comparison", condition, "if not wait and name not in self.held:\n    ..."),
        ("statement removed", "raise ValueError(f'{name} is held, {1 + 1}')", "pass"),
        ("operator", "self.count = len(name) + 1", "self.count = len(name) - 1"),
        ("constant", "self.count = len(name) + 1", "self.count = len(name) + 2"),
        ("statement removed", "self.held.append(name)", "pass"),
        ("returns None", "return name", "return None"),
    ]


def test_a_changed_source_differs_there_alone_and_keeps_its_lines(mutations: ModuleType) -> None:
    for fault in mutations.faults(ast.parse(SOURCE)):
        changed = mutations.changed_source(SOURCE, fault.place.node, fault.mutated)
        places = list(mutations.places(ast.parse(SOURCE)))
        new = list(mutations.places(ast.parse(changed)))
        differ = [b for a, b in zip(places, new, strict=True) if a.statement != b.statement]
        assert [place.statement for place in differ] == [fault.mutated]
        assert [place.node.lineno for place in new] == [place.node.lineno for place in places]


def test_a_text_with_other_letters_is_changed_at_the_right_columns(mutations: ModuleType) -> None:
    source = "def f():\n    a = 'é∞'; b = 1  # ü\n"
    *_, fault = mutations.faults(ast.parse(source))
    changed = mutations.changed_source(source, fault.place.node, fault.mutated)
    assert changed == "def f():\n    a = 'é∞'; b = 2  # ü\n"


def write(root: Path, name: str, text: str) -> None:
    """Write a module of a made-up project."""
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(textwrap.dedent(text), encoding="utf-8")


MUTANT: dict[str, Any] = {
    "module": "pytest_cudafork/old.py",
    "function": "Locks.take",
    "statement": "return (name)",
    "mutated": "return None",
}


def test_a_fault_is_found_again_in_another_module(mutants: ModuleType, tmp_path: Path) -> None:
    write(tmp_path, "pytest_cudafork/deep/new.py", SOURCE)
    write(tmp_path, "pytest_cudafork/other.py", "def other(name):\n    return name\n")
    spot, mutated = mutants.find(MUTANT, mutants.every_place(tmp_path))
    assert spot.path.name == "new.py"
    assert mutated == "return None"
    renamed = {**MUTANT, "function": "acquire"}
    with pytest.raises(mutants.NotFoundError, match="2 statements 'return name'"):
        mutants.find(renamed, mutants.every_place(tmp_path))
    renamed["found_as"] = {"module": "other.py"}
    assert mutants.find(renamed, mutants.every_place(tmp_path))[0].path.name == "other.py"


def test_a_fault_can_be_given_new_words(mutants: ModuleType, tmp_path: Path) -> None:
    write(tmp_path, "pytest_cudafork/new.py", "def take(key):\n    return key, 1\n")
    with pytest.raises(mutants.NotFoundError, match="0 statements"):
        mutants.find(MUTANT, mutants.every_place(tmp_path))
    words = {"statement": "return key, 1", "mutated": "return key, 2"}
    spot, mutated = mutants.find({**MUTANT, "found_as": words}, mutants.every_place(tmp_path))
    assert spot.place.statement == "return (key, 1)"
    assert mutated == "return key, 2"


def test_tests_are_found_by_their_names(mutants: ModuleType, tmp_path: Path) -> None:
    write(tmp_path, "tests/unit/test_a.py", "def test_one(): pass\ndef test_two(): pass\n")
    write(tmp_path, "tests/unit/test_b.py", "class TestB:\n    def test_two(self): pass\n")
    write(tmp_path, "tests/specimens/test_c.py", "def test_one(): pass\n")
    names = mutants.test_names(tmp_path)

    def ids(file: str, name: str) -> list[str]:
        found = mutants.node_ids({"tests": [{"file": file, "name": name}]}, names)
        return [each.removeprefix(f"{tmp_path}/tests/unit/") for each in found]

    assert ids("test_moved.py", "test_one[a-b]") == ["test_a.py::test_one[a-b]"]
    assert ids("test_b.py", "test_two") == ["test_b.py::TestB::test_two"]
    assert len(ids("test_moved.py", "test_two")) == 2
    with pytest.raises(mutants.NotFoundError, match="no test 'test_three'"):
        ids("test_a.py", "test_three")


def test_the_list_has_thirty_faults_each_with_tests(mutants: ModuleType) -> None:
    listed = json.loads(mutants.LIST.read_text(encoding="utf-8"))["mutants"]
    assert [each["number"] for each in listed] == list(range(1, 31))
    for mutant in listed:
        assert mutant["tests"], mutant["number"]
        ast.parse(mutant["statement"])
        assert ast.unparse(ast.parse(mutant["mutated"])) != mutant["statement"]
