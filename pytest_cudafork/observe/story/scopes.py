"""What kind of code a line of a source file is: a class body, a default argument, an import."""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterable, Iterator

from pytest_cudafork.compat.unpatched import ast, contextlib, re
from pytest_cudafork.observe.story.plain_text import plain
from pytest_cudafork.observe.story.source import lines_of, source_line, stamp_of


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


_MOST_TRIES = 20


# A stack may go through a hundred files, and each story asks about all its frames.
@functools.lru_cache(maxsize=256)
def _tree(filename: str, stamp: float) -> ast.Module | None:
    if stamp < 0:
        return None
    try:
        return _parsed("".join(lines_of(filename, stamp)))
    except (SyntaxError, ValueError, RecursionError):
        return None


def _parsed(text: str) -> ast.Module:
    """Parse; again where another thread has parsed meanwhile, which Python 3.11 cannot bear.

    Raises:
        SystemError: That was so each time.

    """
    for _ in range(_MOST_TRIES):
        with contextlib.suppress(SystemError):
            return ast.parse(text)
    return ast.parse(text)


def tree_of(filename: str) -> ast.Module | None:
    """Return the syntax tree of a source file; None when it is not readable Python."""
    with contextlib.suppress(SystemError):
        return _tree(filename, stamp_of(filename))
    return None


def scope_of(filename: str, lineno: int, name: str) -> Scope:
    """Return the kind of code object called ``name`` that was executing ``lineno``.

    For stacks that come without code flags. Falls back to ``FUNCTION``.
    """
    stamp = stamp_of(filename)
    # Most frames are of functions, and no class has their name: then nothing has to be parsed.
    if name.isascii() and name not in _class_names(filename, stamp):
        return Scope.FUNCTION
    found = [
        (start, is_class)
        for start, end, is_class in _definitions(filename, stamp).get(name, ())
        if start <= lineno <= end
    ]
    return Scope.CLASS if found and max(found)[1] else Scope.FUNCTION


@functools.lru_cache(maxsize=1024)
def _class_names(filename: str, stamp: float) -> frozenset[str]:
    """Return what follows the word "class" anywhere in a file, comments and strings included."""
    if stamp < 0:
        return frozenset()
    # The name is only looked at: it may be the word itself, as after "dataclass" in a line's end.
    return frozenset(re.findall(r"class[\s\\]+(?=(\w+))", "".join(lines_of(filename, stamp))))


@functools.lru_cache(maxsize=64)
def _definitions(filename: str, stamp: float) -> dict[str, list[tuple[int, int, bool]]]:
    """First line, last line, and whether it is a class, of all that is defined, by name.

    Kept for each file, because a story asks for every frame of a stack.
    """
    found: dict[str, list[tuple[int, int, bool]]] = {}
    tree = _tree(filename, stamp)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            extent = node.lineno, node.end_lineno or node.lineno, isinstance(node, ast.ClassDef)
            found.setdefault(node.name, []).append(extent)
    return found


def _line(node: ast.AST) -> int:
    return int(getattr(node, "lineno", 0))


def _covers(node: ast.AST | None, lineno: int) -> bool:
    if node is None:
        return False
    return _line(node) <= lineno <= int(getattr(node, "end_lineno", None) or _line(node))


def statement_of(
    filename: str, lineno: int, scope: Scope | None = None, name: str = ""
) -> tuple[Statement, str]:
    """Return what the line of a module or class body is, and the name it defines ("" if none).

    Several statements may share a line (``def f(x=probe()): return x``): with ``scope``, and the
    ``name`` of the class or function, it is one that runs there. Where several of these may do more
    than name a value (``a = f(); b = g()``), nobody knows which it is.
    """
    node, _ = _statement_there(filename, lineno, scope, name)
    return (Statement.OTHER, "") if node is None else _classify(node, lineno)


def statement_text(
    filename: str, lineno: int, scope: Scope | None = None, name: str = ""
) -> tuple[str, str]:
    """Return the qualified name of the scope that runs a statement, and its text in one line.

    The arguments are those of ``statement_of``. The scope of a module body is "<module>". Of a
    compound statement the text is the head, or the decorator with the line. Neither says where in
    the file it stands. Where nobody knows which statement it is, the text is that of the line;
    where the source cannot be read, "".
    """
    node, owner = _statement_there(filename, lineno, scope, name)
    if node is None:
        return owner[1] or "<module>", " ".join(source_line(filename, lineno).split())
    decorators = getattr(node, "decorator_list", [])
    part: ast.AST = next((each for each in decorators if _covers(each, lineno)), node)
    lines = lines_of(filename, stamp_of(filename))
    start, end = _line(part) - 1, int(getattr(part, "end_lineno", None) or _line(part))
    body = getattr(part, "body", None)
    text = "".join(lines[start:end])
    if isinstance(body, list) and body:  # the head ends where the body begins
        first = _extent(body[0])[0] - 1
        text = "".join(lines[start : max(first, start + 1)])
    return owner[1] or "<module>", plain(" ".join(text.split()))


def _statement_there(
    filename: str, lineno: int, scope: Scope | None, name: str
) -> tuple[ast.stmt | None, _Owner]:
    """Return the statement that runs at a line, None if nobody knows which, and what runs it."""
    there = _statements_there(filename, lineno, scope, name)
    if not there:
        return None, (Scope.MODULE, name)
    busy = [each for each in there if _is_busy(each[0], lineno)]
    node, owner = (busy or there)[-1]
    return (node if len(busy) <= 1 else None), owner


def _statements_there(
    filename: str, lineno: int, scope: Scope | None, name: str
) -> list[tuple[ast.stmt, _Owner]]:
    """Return the statements at a line that run in a scope, with what runs them; inner ones last.

    Where the scope has none there, those of all scopes.
    """
    tree = tree_of(filename)
    found = [] if tree is None else list(_statements_at(tree.body, lineno, (Scope.MODULE, "")))
    name = name.rpartition(".")[2] if scope is not Scope.MODULE else ""
    there = [
        (node, owner)
        for node, owner in found
        if scope is None or (owner[0], owner[1].rpartition(".")[2]) == (scope, name)
    ]
    return there or found


_INNER = ("body", "orelse", "finalbody", "handlers", "cases")
"""The fields of a compound statement that hold others."""
_IDLE = (ast.Constant, ast.Name, ast.Starred, ast.Tuple, ast.List, ast.Set, ast.Dict)
"""Expressions that run nothing of anybody's by themselves."""
_Owner = tuple[Scope, str]
"""What runs a statement: the kind of code, and its qualified name ("" for a module)."""


def _statements_at(
    body: Iterable[ast.stmt], lineno: int, owner: _Owner
) -> Iterator[tuple[ast.stmt, _Owner]]:
    """Yield the statements that hold a line, each after those around it, with what runs them."""
    for node in body:
        if not _holds(node, lineno):
            continue
        yield node, owner
        inner = owner
        around = f"{owner[1]}." if owner[1] else ""
        if isinstance(node, ast.ClassDef):
            inner = Scope.CLASS, f"{around}{node.name}"
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = Scope.FUNCTION, f"{around}{node.name}"
        for _, statements in _parts(node):
            yield from _statements_at(statements, lineno, inner)


def _parts(node: ast.stmt) -> Iterator[tuple[str, list[ast.stmt]]]:
    """Yield the lists of statements in a compound statement, each with the name of its part."""
    for part in ("body", "orelse", "finalbody"):
        yield part, getattr(node, part, [])
    for handler in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield "handlers", handler.body


def enclosing_statements(tree: ast.Module, lineno: int) -> list[tuple[ast.stmt, str]]:
    """Return the compound statements around a line that run in the same frame, innermost first.

    Each comes with the part of it that holds the line: ``body``, ``orelse``, ``finalbody``,
    ``handlers``, or ``""`` for its head.
    """
    around: list[tuple[ast.stmt, str]] = []
    body: list[ast.stmt] = tree.body
    while True:
        node = next((node for node in body if _holds(node, lineno)), None)
        if node is None:
            return around[::-1]
        with_line = (one for one in _parts(node) if any(_holds(each, lineno) for each in one[1]))
        part, body = next(with_line, ("", []))
        if part == "body" and isinstance(
            node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        ):
            around.clear()
        elif part or isinstance(node, ast.With | ast.AsyncWith):
            around.append((node, part))


def _holds(node: ast.stmt, lineno: int) -> bool:
    start, end = _extent(node)
    return start <= lineno <= end


def _extent(node: ast.stmt) -> tuple[int, int]:
    """First and last line of a statement, decorators included."""
    decorators = getattr(node, "decorator_list", [])
    start = min([node.lineno, *(_line(d) for d in decorators)])
    return start, node.end_lineno or node.lineno


def _is_busy(node: ast.stmt, lineno: int) -> bool:
    """Whether a statement does more at a line than to name values; its inner ones do not count."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return True
    fields = [getattr(node, field, None) for field in node._fields if field not in _INNER]
    parts = [part for value in fields for part in (value if isinstance(value, list) else [value])]
    return any(
        isinstance(each, ast.expr) and not isinstance(each, _IDLE) and _covers(each, lineno)
        for part in parts
        if isinstance(part, ast.AST)
        for each in ast.walk(part)
    )


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
