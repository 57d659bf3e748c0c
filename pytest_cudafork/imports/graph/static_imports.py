"""What a source file imports while it is itself being imported, read off its syntax tree."""

from __future__ import annotations

import ast
import importlib.util
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pytest_cudafork.imports.values.targets import FoundModule

_TRIPLE = re.compile(rb"\"\"\"|'''")
# A function: its first line, and what follows that is indented deeper, blank, a comment, or closes
# the bracket of its parameters.
_FUNCTION = re.compile(
    rb"^([ \t]*)(?:async[ \t]+)?def\b[^\n]*\n"
    rb"(?:(?:\1[ \t]+[^\n]*|\1\)[^\n]*|[ \t]*(?:#[^\n]*)?)\n)*",
    re.M,
)
_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")


class WrittenImport(NamedTuple):
    """An import statement with its dots resolved.

    ``names`` are what a ``from module import ...`` takes, () for a plain ``import module``;
    ``is_lazy`` is whether it says ``lazy``, as it can from Python 3.15 on.
    """

    module: str
    names: tuple[str, ...]
    line: int
    is_lazy: bool = False


class Unreadable(Exception):
    """The source is not Python; recoverable, the module has no edges then."""


def imports_of(source: bytes, module: FoundModule) -> list[WrittenImport]:
    """Return what a module imports when its body runs: not in functions, not for type checkers.

    Args:
        source: The file.
        module: Which module it is; relative imports start from it.

    Raises:
        Unreadable: The source cannot be parsed.

    """
    found: list[WrittenImport] = []
    for node in _statements(_parse(source).body):
        is_lazy = bool(getattr(node, "is_lazy", False))
        if isinstance(node, ast.Import):
            found += [WrittenImport(alias.name, (), node.lineno, is_lazy) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            origin = absolute_name("." * node.level + (node.module or ""), module)
            if origin and origin != "__future__":
                names = tuple(alias.name for alias in node.names)
                found.append(WrittenImport(origin, names, node.lineno, is_lazy))
    return found


def _parse(source: bytes) -> ast.Module:
    """Parse what is left without the bodies of functions: twice as fast as parsing everything."""
    source = source.replace(b"\r\n", b"\n") + b"\n"
    skeleton = _skeleton(source)
    for text in (source,) if skeleton is None else (skeleton, source):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # invalid escapes are the business of others
                return ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as caught:
            error = caught
    raise Unreadable(str(error)) from error


def _skeleton(source: bytes) -> bytes | None:
    """Empty all functions, keeping the numbers of the lines; None where it cannot be done by lines.

    A string that goes on over the end of what looks like a function leaves an odd number of triple
    quotes in it. A bracket that does leaves text that cannot be parsed.
    """
    pieces: list[bytes] = []
    end = 0
    for match in _FUNCTION.finditer(source):
        text = match.group()
        if len(_TRIPLE.findall(text)) % 2:
            return None
        pieces += [source[end : match.start()], match.group(1), b"def _(): pass"]
        pieces.append(b"\n" * text.count(b"\n"))
        end = match.end()
    return b"".join([*pieces, source[end:]])


def _statements(body: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Yield the statements that run with a body, nested ones too."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        yield node
        blocks: tuple[str, ...] = _BLOCKS
        if isinstance(node, ast.If):
            holds = _holds(node.test)
            if holds is not None:
                blocks = ("body",) if holds else ("orelse",)
        for block in blocks:
            inner = getattr(node, block, ())
            if isinstance(inner, list):
                yield from _statements(inner)


def _holds(test: ast.expr) -> bool | None:
    """Whether a condition holds while the module is being imported; None where it may."""
    if isinstance(test, ast.Constant):
        return bool(test.value)
    if isinstance(test, ast.Name):
        return False if test.id == "TYPE_CHECKING" else None
    if isinstance(test, ast.Attribute):
        return False if test.attr == "TYPE_CHECKING" else None
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _holds(test.operand)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        decides = isinstance(test.op, ast.Or)
        parts = [_holds(part) for part in test.values]
        if decides in parts:
            return decides
        return None if None in parts else not decides
    return False if _asks_for_main(test) else None


def _asks_for_main(test: ast.expr) -> bool:
    return (
        isinstance(test, ast.Compare)
        and isinstance(test.left, ast.Name)
        and test.left.id == "__name__"
        and len(test.ops) == 1
        and isinstance(test.ops[0], ast.Eq)
        and isinstance(test.comparators[0], ast.Constant)
        and test.comparators[0].value == "__main__"
    )


def absolute_name(origin: str, module: FoundModule) -> str:
    """Return the full name of what ``from origin import`` takes from in a module's source.

    Returns "" for dots that lead out of the top-level package.
    """
    package = module.name if module.is_package else module.name.rpartition(".")[0]
    try:
        return importlib.util.resolve_name(origin, package)
    except ImportError:
        return ""
