"""Small faults that can be put into Python code: where they can go, and how a statement is changed.

A fault ("mutant") is kept as the text of one statement before and after, beside the name of the
function around it, so that it can be found again after the code has moved to another module. Of a
compound statement (``if``, ``for``, ``while``, ``with``) only the head counts, its body stands as
``...``. Texts are normalized by `ast.unparse`, which makes layout and comments irrelevant.

Nothing here runs anything: sources go in, statements and changed sources come out.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
# Division is left out: most of it joins paths, and a TypeError would prove nothing.
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_SIMPLE = (ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.Assert, ast.Delete)
_COMPOUND = (ast.If, ast.While, ast.For, ast.With)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_BODIES = ("body", "orelse", "handlers", "finalbody")
_TEXTS = (ast.JoinedStr, ast.FormattedValue)
_TELLING = ("warn", "warn_explicit", "debug", "info", "warning", "error", "exception", "log")


@dataclass(frozen=True)
class Place:
    """A statement of the code: the names around it (class and function), its head as text."""

    scope: str
    statement: str
    node: ast.stmt

    @property
    def function(self) -> str:
        """The innermost name around the statement; "" at the top of a module."""
        return self.scope.rpartition(".")[2]


@dataclass(frozen=True)
class Fault:
    """One change that can be made at a place: its kind in words, the statement with it."""

    place: Place
    kind: str
    mutated: str


def normalized(text: str) -> str:
    """Return a statement's text as this Python's `ast.unparse` writes it."""
    return ast.unparse(ast.parse(text))


def places(tree: ast.Module) -> Iterator[Place]:
    """Yield each statement of a module in order; code for the type checker alone is left out."""
    yield from _places(tree, "")


def _places(node: ast.AST, scope: str) -> Iterator[Place]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _SCOPES):
            yield from _places(child, f"{scope}.{child.name}".lstrip("."))
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.stmt):
            yield Place(scope, head(child), child)
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from _places(child, scope)


def head(node: ast.stmt) -> str:
    """Return the text of a statement; of a compound one its head, with ``...`` for the body."""
    if any(hasattr(node, name) for name in _BODIES):
        node = copy.copy(node)
        for name in _BODIES:
            if hasattr(node, name):
                setattr(node, name, [])
        node.body = [ast.Expr(ast.Constant(...))]  # type: ignore[attr-defined]
        if isinstance(node, ast.Try):
            node.finalbody = node.body
    return ast.unparse(node)


def faults(tree: ast.Module) -> Iterator[Fault]:
    """Yield each change that can be made to a module, in the order of its statements."""
    for place in places(tree):
        node = place.node
        if _removable(node):
            yield Fault(place, "statement removed", "pass")
        if isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
            yield Fault(place, "returns None", "return None")
        if isinstance(node, _SIMPLE + _COMPOUND):
            yield from _within(place)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _removable(node: ast.stmt) -> bool:
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call) and not _tells(node.value)
    return isinstance(node, ast.AugAssign | ast.Raise | ast.Continue | ast.Break)


def _tells(call: ast.Call) -> bool:
    """Whether a call writes a warning or a line of a log."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
    return name in _TELLING


def _within(place: Place) -> Iterator[Fault]:
    """Yield the changes of expressions inside one statement, its body not included."""
    count = sum(1 for _ in _slots(ast.parse(place.statement).body[0]))
    for index in range(count):
        changed = ast.parse(place.statement).body[0]
        owner, field, number, value = list(_slots(changed))[index]
        for kind, new in _changes(value):
            _put(owner, field, number, new)
            yield Fault(place, kind, ast.unparse(changed))
            _put(owner, field, number, value)


_Slot = tuple[ast.AST, str, "int | None", ast.expr]


def _slots(node: ast.AST) -> Iterator[_Slot]:
    """Yield each expression below a node with where it hangs; annotations and texts left out."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", *_BODIES):
            continue
        for number, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(child, ast.AST) or isinstance(child, _TEXTS):
                continue
            if isinstance(child, ast.Call) and _tells(child):
                continue
            if isinstance(child, ast.expr):
                yield node, field, number, child
            yield from _slots(child)


def _put(owner: ast.AST, field: str, number: int | None, value: ast.expr) -> None:
    if number is None:
        setattr(owner, field, value)
    else:
        getattr(owner, field)[number] = value


def _changes(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    new = copy.deepcopy(node)
    if isinstance(new, ast.Compare) and type(new.ops[0]) in _COMPARISONS:
        new.ops[0] = _COMPARISONS[type(new.ops[0])]()
        yield "comparison", new
    elif isinstance(new, ast.BinOp) and type(new.op) in _OPERATORS and not _of_text(new):
        new.op = _OPERATORS[type(new.op)]()
        yield "operator", new
    elif isinstance(new, ast.BoolOp):
        new.op = ast.Or() if isinstance(new.op, ast.And) else ast.And()
        yield "and, or", new
    elif isinstance(new, ast.UnaryOp) and isinstance(new.op, ast.Not):
        yield "negation", new.operand
    elif isinstance(new, ast.Constant) and isinstance(new.value, bool):
        yield "constant", ast.Constant(not new.value)
    elif isinstance(new, ast.Constant) and isinstance(new.value, int):
        yield "constant", ast.Constant(new.value + 1)


def _of_text(node: ast.BinOp) -> bool:
    """Whether an operand is a text or a display of a list: with them the operator is no sum."""
    sides = (node.left, node.right)
    words = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp)
    return any(
        isinstance(side, words) or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in sides
    )


def changed_source(source: str, node: ast.stmt, mutated: str) -> str:
    """Return a module's source with one of its statements changed; other lines keep their numbers.

    ``node`` is the statement as parsed from ``source``, ``mutated`` its new text (for a compound
    statement its new head, with ``...`` for the body).

    Raises:
        ValueError: the new text is no statement of that kind, or its head is the same.

    """
    new = ast.parse(mutated).body[0]
    if not isinstance(node, _COMPOUND):
        return _replaced(source, node, ast.unparse(new), ("", ""))
    if type(new) is not type(node):
        raise ValueError(f"{mutated!r} is not a head to put in place of {head(node)!r}")
    for before, after in zip(_head_parts(node), _head_parts(new), strict=True):
        if ast.dump(before) != ast.dump(after):
            return _replaced(source, before, ast.unparse(after), ("(", ")"))
    raise ValueError(f"{mutated!r} changes nothing")


def _head_parts(node: ast.stmt) -> list[ast.expr]:
    if isinstance(node, ast.If | ast.While):
        return [node.test]
    if isinstance(node, ast.For):
        return [node.iter]
    assert isinstance(node, ast.With)
    return [item.context_expr for item in node.items]


def _replaced(source: str, node: ast.stmt | ast.expr, text: str, around: tuple[str, str]) -> str:
    """Replace a node's text; as many line ends as it had are kept."""
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    lines = source.encode().splitlines(keepends=True)  # columns count bytes
    start = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
    whole = b"".join(lines)
    kept = "\n" * (whole[start:end].count(b"\n") - text.count("\n"))
    if around[0]:
        text = f"{around[0]}{text}{kept}{around[1]}"
    else:
        text += kept
    return (whole[:start] + text.encode() + whole[end:]).decode()
