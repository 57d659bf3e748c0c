"""What a source imports when it is imported: no functions, dots resolved."""

from __future__ import annotations

import ast
import sys
import sysconfig
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cudafork.imports.graph import static_imports
from pytest_cudafork.imports.graph.static_imports import imports_of
from pytest_cudafork.imports.values.targets import FoundModule

MODULE = FoundModule("pkg.mod", "")


def imported(source: str, name: str = "pkg.mod", is_package: bool = False) -> set[str]:
    return {item.module for item in imports_of(source.encode(), FoundModule(name, "", is_package))}


def test_only_what_runs_at_import_time_counts() -> None:
    source = """
from __future__ import annotations
import top, pair.of
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import never_types
else:
    import only_at_run_time
if typing.TYPE_CHECKING and x:
    import never_types_2
if not TYPE_CHECKING:
    import also_at_run_time
if __name__ == "__main__":
    import never_main
if False or 0:
    import never_false
if x:
    import in_if
elif y:
    import in_elif
try:
    import in_try
except ImportError:
    import in_except
else:
    import in_else
finally:
    import in_finally
with x:
    for y in z:
        import in_for
    while y:
        import in_while
match x:
    case 1:
        import in_case
class A:
    import in_class
    class B:
        import in_inner_class
        def method(self):
            import never_method
def function(
    a,
):
    import never_function
async def coroutine(): import never_coroutine
@decorated
def other():
    def inner():
        import never_inner
"""
    assert imported(source) == {
        *("top", "pair.of", "typing", "only_at_run_time", "also_at_run_time"),
        *("in_if", "in_elif", "in_try", "in_except", "in_else", "in_finally", "in_for"),
        *("in_while", "in_case", "in_class", "in_inner_class"),
    }


def test_relative_imports_are_resolved() -> None:
    source = "from . import a\nfrom .b import c\nfrom ..d import e\nfrom .... import too_far\n"
    assert imported(source, "pkg.sub.mod") == {"pkg.sub", "pkg.sub.b", "pkg.d"}
    assert imported(source, "pkg.sub.mod", is_package=True) == {
        *("pkg.sub.mod", "pkg.sub.mod.b", "pkg.sub.d")
    }


NAMES = st.sampled_from(["a", "b.c", "d"])


LEAVES = st.one_of(
    NAMES.map(lambda name: [f"import {name}"]),
    st.just(["'''", "import text", "'''"]),
    st.just(["x = '''", "def f():", "  import text", "  '''"]),
    st.just(["x = (", "1)", "# def g():"]),
    st.just(["pass"]),
)


def _block(inner: st.SearchStrategy[list[str]]) -> st.SearchStrategy[list[str]]:
    heads = st.sampled_from(
        ["def f():", "async def f(a,\n  b):", "class A:", "if x:", "def f(\n):", "@f\ndef f():"]
    )

    def put(head: str, bodies: list[list[str]]) -> list[str]:
        return [*head.split("\n"), *(f"    {line}" for body in bodies for line in body), ""]

    return st.builds(put, heads, st.lists(inner, min_size=1, max_size=3))


@pytest.mark.slow
@given(st.lists(st.recursive(LEAVES, _block, max_leaves=8), max_size=6))
def test_leaving_out_the_bodies_of_functions_changes_nothing(pieces: list[list[str]]) -> None:
    source = "\n".join(line for piece in pieces for line in piece)
    assert imports_of(source.encode(), MODULE) == _by_full_parse(source.encode())


@pytest.mark.slow
def test_leaving_out_the_bodies_of_functions_changes_nothing_in_the_standard_library() -> None:
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    assert len(files) > 100
    for file in files:
        source = file.read_bytes()
        assert imports_of(source, MODULE) == _by_full_parse(source), file


def _by_full_parse(source: bytes) -> list[static_imports.WrittenImport]:
    found = []
    for node in static_imports._statements(ast.parse(source).body):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            text = "\n" * (node.lineno - 1) + ast.unparse(node)
            found += imports_of(text.encode(), MODULE)
    return found


LAZY = b"lazy import a, b\nlazy from c import d\nimport e\n"


def say_lazy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let imports of the first two lines be what Python 3.15 makes of ``lazy import``."""
    parse = ast.parse

    def parse_lazy(source: bytes) -> ast.Module:
        tree = parse(source.replace(b"lazy ", b""))
        for node in tree.body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                node.is_lazy = int(node.lineno < 3)  # type: ignore[union-attr]
        return tree

    monkeypatch.setattr(ast, "parse", parse_lazy)


@pytest.mark.parametrize(
    "real",
    [
        False,
        pytest.param(
            True,
            marks=pytest.mark.skipif(sys.version_info < (3, 15), reason="needs Python 3.15"),
        ),
    ],
)
def test_imports_that_say_lazy_are_known(real: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not real:
        say_lazy(monkeypatch)
    found = {item.module: item.is_lazy for item in imports_of(LAZY, MODULE)}
    assert found == {"a": True, "b": True, "c": True, "e": False}
