"""What kind of code a line of a source file is: a class body, a default argument, an import."""

from __future__ import annotations

import ast
import enum
import functools
import linecache
import os
import re


class Scope(enum.Enum):
    """What a frame executes."""

    MODULE = "module body"
    CLASS = "class body"
    FUNCTION = "function"


class Statement(enum.Enum):
    """What a line of a body is, as far as the advice differs."""

    DEFAULT = "default argument"
    DECORATOR = "decorator"
    ANNOTATION = "annotation"
    IMPORT = "import"
    ASSIGNMENT = "assignment"
    OTHER = "statement"


def source_line(filename: str, lineno: int) -> str:
    """Return the line's text without indentation, or "" when the file cannot be read."""
    try:
        return linecache.getline(filename, lineno).strip()
    except ValueError:  # code may call its file anything, also what cannot be the name of one
        return ""


# A stack may go through a hundred files, and each story asks about all its frames.
@functools.lru_cache(maxsize=256)
def _tree(filename: str, _mtime: float) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError, RecursionError):
        return None


def tree_of(filename: str) -> ast.Module | None:
    """Return the syntax tree of a source file; None when it is not readable Python."""
    mtime = _mtime_of(filename)
    return None if mtime is None else _tree(filename, mtime)


def _mtime_of(filename: str) -> float | None:
    """Return when a file was changed, having forgotten its former lines; None without a file."""
    try:
        mtime = os.stat(filename).st_mtime
    except (OSError, ValueError):
        return None
    linecache.checkcache(filename)
    return mtime


def scope_of(filename: str, lineno: int, name: str) -> Scope:
    """Return the kind of code object called ``name`` that was executing ``lineno``.

    For stacks that come without code flags. Falls back to ``FUNCTION``.
    """
    mtime = _mtime_of(filename)
    return Scope.FUNCTION if mtime is None else _scope(filename, mtime, lineno, name)


@functools.lru_cache(maxsize=1024)
def _class_names(filename: str, _mtime: float) -> frozenset[str]:
    """Return what follows the word "class" anywhere in a file, comments and strings included."""
    return frozenset(re.findall(r"class[\s\\]+(\w+)", "".join(linecache.getlines(filename))))


@functools.lru_cache(maxsize=8192)
def _scope(filename: str, mtime: float, lineno: int, name: str) -> Scope:
    # Most frames are of functions, and no class has their name: then nothing has to be parsed.
    if name.isascii() and name not in _class_names(filename, mtime):
        return Scope.FUNCTION
    tree = _tree(filename, mtime)
    if tree is None:
        return Scope.FUNCTION
    best: ast.AST | None = None
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        inside = node.lineno <= lineno <= (node.end_lineno or node.lineno)
        if inside and node.name == name and (best is None or node.lineno >= _line(best)):
            best = node
    return Scope.CLASS if isinstance(best, ast.ClassDef) else Scope.FUNCTION


def _line(node: ast.AST) -> int:
    return int(getattr(node, "lineno", 0))


def _covers(node: ast.AST | None, lineno: int) -> bool:
    if node is None:
        return False
    return _line(node) <= lineno <= int(getattr(node, "end_lineno", None) or _line(node))


def statement_of(filename: str, lineno: int) -> tuple[Statement, str]:
    """Return what the line of a module or class body is, and the name it defines ("" if none)."""
    tree = tree_of(filename)
    if tree is None:
        return Statement.OTHER, ""
    innermost: tuple[Statement, str] = (Statement.OTHER, "")
    size = 1 << 30
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt):
            continue
        start, end = _extent(node)
        if start <= lineno <= end and end - start <= size:
            innermost, size = _classify(node, lineno), end - start
    return innermost


def _extent(node: ast.stmt) -> tuple[int, int]:
    """First and last line of a statement, decorators included."""
    decorators = getattr(node, "decorator_list", [])
    start = min([node.lineno, *(_line(d) for d in decorators)])
    return start, node.end_lineno or node.lineno


def _classify(node: ast.stmt, lineno: int) -> tuple[Statement, str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        if any(_covers(d, lineno) for d in node.decorator_list):
            return Statement.DECORATOR, node.name
        if not isinstance(node, ast.ClassDef):
            defaults = [*node.args.defaults, *node.args.kw_defaults]
            if any(_covers(d, lineno) and not isinstance(d, ast.Constant) for d in defaults):
                return Statement.DEFAULT, node.name
        if node.decorator_list and lineno == node.lineno:
            return Statement.DECORATOR, node.name  # Python 3.10 gives the call that line
        return Statement.OTHER, node.name
    if isinstance(node, ast.Import | ast.ImportFrom):
        return Statement.IMPORT, getattr(node, "module", None) or node.names[0].name
    if isinstance(node, ast.Assign):
        names = [t.id for t in node.targets if isinstance(t, ast.Name)]
        return Statement.ASSIGNMENT, names[0] if names else ""
    if isinstance(node, ast.AnnAssign):
        name = node.target.id if isinstance(node.target, ast.Name) else ""
        if _covers(node.annotation, lineno) and not _covers(node.value, lineno):
            return Statement.ANNOTATION, name
        if node.value is None:
            return Statement.ANNOTATION, name
        return Statement.ASSIGNMENT, name
    return Statement.OTHER, ""
