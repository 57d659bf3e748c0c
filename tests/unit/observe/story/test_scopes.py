"""What kind of code a line is, out of its source file."""

from __future__ import annotations

import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_cudafork.compat.unpatched import ast
from pytest_cudafork.observe.story import scopes
from pytest_cudafork.observe.story.scopes import (
    Scope,
    Statement,
    enclosing_statements,
    scope_of,
    statement_of,
    statement_text,
    tree_of,
)
from pytest_cudafork.observe.story.source import source_line

SOURCE = """\
import torch
from engine import probe

CONSTANT = probe()
a = b = probe()
a.b = probe()
annotated: probe() = 1
bare: probe()

@probe()
def decorated():
    probe()

def default(x=probe(), *, y=probe(), z=1):
    return x

async def later(x=probe()):
    return x

class Body:
    line = probe()
    def method(self):
        return probe()

@probe
class Decorated:
    pass

if CONSTANT:
    probe()
"""

EXPECTED = {
    1: (Statement.IMPORT, "torch"),
    2: (Statement.IMPORT, "engine"),
    4: (Statement.ASSIGNMENT, "CONSTANT"),
    5: (Statement.ASSIGNMENT, "a"),
    6: (Statement.ASSIGNMENT, ""),
    7: (Statement.ASSIGNMENT, "annotated"),
    8: (Statement.ANNOTATION, "bare"),
    10: (Statement.DECORATOR, "decorated"),
    11: (Statement.DECORATOR, "decorated"),
    12: (Statement.OTHER, ""),
    14: (Statement.DEFAULT, "default"),
    17: (Statement.DEFAULT, "later"),
    21: (Statement.ASSIGNMENT, "line"),
    25: (Statement.DECORATOR, "Decorated"),
    30: (Statement.OTHER, ""),
}


@pytest.fixture
def source(tmp_path: Path) -> str:
    """A file with the lines above."""
    path = tmp_path / "source.py"
    path.write_text(SOURCE)
    return str(path)


@pytest.mark.parametrize("lineno", EXPECTED)
def test_a_statement_is_told_by_its_line(source: str, lineno: int) -> None:
    assert statement_of(source, lineno) == EXPECTED[lineno]


ONE_LINERS = """\
def f(x=probe()): return x
class A: value = probe()
class B:
    def g(self, x=probe()): return x
if True: constant = probe()
@probe()
def h(): return 1
async def later(x=probe()): pass
a = 1; b = probe(); c = 2
a = probe(); b = probe()
if probe(): constant = probe()
import one; two = 2
"""


@pytest.mark.parametrize(
    ("lineno", "scope", "name", "expected"),
    [
        (1, Scope.MODULE, "<module>", (Statement.DEFAULT, "f")),
        (1, Scope.FUNCTION, "f", (Statement.OTHER, "")),
        (2, Scope.CLASS, "A", (Statement.ASSIGNMENT, "value")),
        (2, Scope.MODULE, "<module>", (Statement.OTHER, "A")),
        (4, Scope.CLASS, "outer.<locals>.B", (Statement.DEFAULT, "g")),
        (5, Scope.MODULE, "<module>", (Statement.ASSIGNMENT, "constant")),
        (6, Scope.MODULE, "<module>", (Statement.DECORATOR, "h")),
        (8, Scope.MODULE, "<module>", (Statement.DEFAULT, "later")),
        (8, Scope.MODULE, "a tool's name for a module", (Statement.DEFAULT, "later")),
        (9, Scope.MODULE, "<module>", (Statement.ASSIGNMENT, "b")),
        (10, Scope.MODULE, "<module>", (Statement.OTHER, "")),
        (11, Scope.MODULE, "<module>", (Statement.OTHER, "")),
        (12, Scope.MODULE, "<module>", (Statement.IMPORT, "one")),
    ],
)
def test_of_statements_on_one_line_the_one_that_runs_there_is_told(
    tmp_path: Path, lineno: int, scope: Scope, name: str, expected: tuple[Statement, str]
) -> None:
    path = tmp_path / "short.py"
    path.write_text(ONE_LINERS)
    assert statement_of(str(path), lineno, scope, name) == expected


@pytest.mark.parametrize(
    ("source", "statement", "text"),
    [
        ("a = probe(); b = (\n    1\n)\n", (Statement.ASSIGNMENT, "a"), "a = probe(); b = ("),
        ("a = (\n    1); b = 2\n", (Statement.ASSIGNMENT, "a"), "a = ( 1); b = 2"),
        ("a = probe();  b = probe(\n    1\n)\n", (Statement.OTHER, ""), "a = probe(); b = probe("),
        ("if probe(): a = (\n    1\n)\n", (Statement.OTHER, ""), "if probe(): a = ("),
    ],
)
def test_the_text_of_a_statement_is_that_of_the_one_that_is_told(
    tmp_path: Path, source: str, statement: tuple[Statement, str], text: str
) -> None:
    path = tmp_path / "shared.py"
    path.write_text(source)
    assert statement_of(str(path), 1, Scope.MODULE) == statement
    assert statement_text(str(path), 1, Scope.MODULE) == ("<module>", text)


def test_the_statements_around_a_line_end_at_its_function(tmp_path: Path) -> None:
    path = tmp_path / "nested.py"
    path.write_text("""\
try:
    def outer():
        with one:
            for _ in two:
                try:
                    three
                finally:
                    four
except E:
    five
""")
    tree = tree_of(str(path))
    assert tree is not None

    def around(lineno: int) -> list[tuple[int, str]]:
        return [(node.lineno, part) for node, part in enclosing_statements(tree, lineno)]

    assert around(6) == [(5, "body"), (4, "body"), (3, "body")]
    assert around(8) == [(5, "finalbody"), (4, "body"), (3, "body")]
    assert around(3) == [(3, "")]
    assert around(2) == [(1, "body")]
    assert around(10) == [(1, "handlers")]
    assert around(99) == []


def test_an_annotation_with_a_value_is_an_assignment_on_the_value(tmp_path: Path) -> None:
    path = tmp_path / "long.py"
    path.write_text("name: int = (\n    probe()\n)\n")
    assert statement_of(str(path), 2) == (Statement.ASSIGNMENT, "name")


@pytest.mark.parametrize(
    ("lineno", "name", "scope"),
    [
        (21, "Body", Scope.CLASS),
        (23, "method", Scope.FUNCTION),
        (12, "decorated", Scope.FUNCTION),
        (4, "<module>", Scope.FUNCTION),
    ],
)
def test_the_scope_of_a_code_object_is_found_by_name_and_line(
    source: str, lineno: int, name: str, scope: Scope
) -> None:
    assert scope_of(source, lineno, name) is scope


@pytest.mark.parametrize("text", ["", "\0", "not python ("])
def test_what_cannot_be_read_is_a_statement_and_a_function(tmp_path: Path, text: str) -> None:
    path = tmp_path / "odd.py"
    path.write_text(text)
    assert statement_of(str(path), 1) == (Statement.OTHER, "")
    assert scope_of(str(path), 1, "anything") is Scope.FUNCTION


def test_a_parse_that_another_thread_has_spoiled_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "code.py"
    path.write_text("a = 1\n")
    parse, spoiled = ast.parse, [True, True, False]

    def sometimes(text: str) -> ast.Module:
        if not spoiled or spoiled.pop(0):
            raise SystemError("AST constructor recursion depth mismatch (before=33, after=35)")
        return parse(text)

    monkeypatch.setattr(scopes, "ast", SimpleNamespace(parse=sometimes, Module=ast.Module))
    assert tree_of(str(path)) is not None
    path = tmp_path / "other.py"
    path.write_text("a = 1\n")
    assert tree_of(str(path)) is None
    spoiled.append(False)
    assert tree_of(str(path)) is not None, "it is not taken for no Python"


@pytest.mark.parametrize("name", ["/no/such/file.py", "<string>", "nul\0byte"])
def test_a_file_that_is_none_has_no_tree_and_no_line(name: str) -> None:
    assert tree_of(name) is None
    assert source_line(name, 1) == ""


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    import os

    path = tmp_path / "changing.py"
    path.write_text("import one\n")
    assert statement_of(str(path), 1)[1] == "one"
    path.write_text(textwrap.dedent("import another\n"))
    os.utime(path, (1, 1))
    assert statement_of(str(path), 1)[1] == "another"


def test_files_are_parsed_once_and_only_where_a_class_has_the_name_of_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stacks that were read without the GIL say nothing of scopes, and each story asks again."""
    parsed: list[str] = []
    parse = ast.parse

    def parsing(source: str) -> ast.Module:
        parsed.append(source)
        return parse(source)

    monkeypatch.setattr(ast, "parse", parsing)
    files = [tmp_path / f"module_{number}.py" for number in range(300)]
    for number, path in enumerate(files):
        head = "class Body:" if number % 3 == 0 else "def body():"
        path.write_text(f"{head}\n    line = {number}\n")
    for _ in range(3):
        scopes = [scope_of(str(path), 2, "Body") for path in files]
        assert scopes.count(Scope.CLASS) == len(files) // 3
        assert scope_of(str(files[1]), 2, "body") is Scope.FUNCTION
    assert len(parsed) == len(files) // 3


@pytest.mark.parametrize(
    "head",
    [
        "class  Body:",
        "class Body (object):",
        "class \\\n    Body:",
        "if True: class_ = 1\nclass Body:",
        "@dataclass\nclass Body:",
        "# a class\nclass Body:",
    ],
)
def test_a_class_is_found_however_it_is_written(head: str, tmp_path: Path) -> None:
    path = tmp_path / "written.py"
    path.write_text(f"{head}\n    line = 1\n")
    assert scope_of(str(path), path.read_text().count("\n"), "Body") is Scope.CLASS


def test_sources_are_read_while_a_test_has_replaced_what_reads_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "code.py"
    path.write_text("class Body:\n    value = 1\n")

    def broken(*args: object, **kwargs: object) -> None:
        raise AssertionError

    for name in ("os.stat", "builtins.open", "io.open", "tokenize.open", "linecache.getlines"):
        monkeypatch.setattr(name, broken)
    found = source_line(str(path), 2), scope_of(str(path), 2, "Body"), source_line("<made up>", 1)
    monkeypatch.undo()
    assert found == ("value = 1", Scope.CLASS, "")
