"""Which test file is a module's own, how much of it that covers, and which need not be covered."""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.repo.sources import PACKAGE, PROJECT, Module, modules

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

UNIT = PROJECT / "tests" / "unit"
EXCEPTIONS = PROJECT / "tests" / "repo" / "not_covered_by_name.toml"
RECORD = PROJECT / "tests" / "repo" / "covered_by_name.toml"
LEAST_PERCENT = 80
_HEAD = """\
# How much of each module its own test file reaches, alone, in percent of its lines; and how many
# statements it had then, so that a module that has changed much since is measured again.
# Written by `python tools/check_unit_coverage.py --record`; read by tests/repo/test_unit_files.py.

"""


@dataclass(frozen=True)
class Recorded:
    """What was measured of a module; ``statements`` are those of its syntax tree."""

    percent: float
    statements: int


def own_test_file(module: Module) -> Path:
    """Return where the tests of a module are: ``a/b.py`` has ``tests/unit/a/test_b.py``.

    For ``__init__.py`` and the like the underscores are left out: ``a/test_init.py``.
    """
    below = module.path.relative_to(PROJECT / PACKAGE)
    return UNIT / below.parent / f"test_{below.stem.strip('_')}.py"


def modules_to_test() -> list[Module]:
    """Return the modules that have something to test; not an ``__init__.py`` without code."""
    return [
        module
        for module in modules()
        if module.path.name != "__init__.py" or _defines_something(module)
    ]


def _defines_something(module: Module) -> bool:
    definitions = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return any(isinstance(node, definitions) for node in ast.walk(module.tree))


def exceptions() -> dict[str, str]:
    """Return the modules that their own test file need not cover, each with the reason."""
    table = tomllib.loads(EXCEPTIONS.read_text(encoding="utf-8"))
    return {name: str(reason) for name, reason in table.items()}


def name_of(module: Module) -> str:
    """Return what a module is called in the tables: its name below the package."""
    return module.short or PACKAGE


def statements_of(module: Module) -> int:
    """Return how many statements a module has, however deep."""
    return sum(isinstance(node, ast.stmt) for node in ast.walk(module.tree))


def recorded() -> dict[str, Recorded]:
    """Return what was measured of each module."""
    table = tomllib.loads(RECORD.read_text(encoding="utf-8"))
    return {name: Recorded(**values) for name, values in table.items()}


def record(percents: Mapping[str, float]) -> None:
    """Write down what was measured; modules that were not keep what they had."""
    known = recorded() if RECORD.exists() else {}
    for module in modules_to_test():
        name = name_of(module)
        if name in percents:
            known[name] = Recorded(percents[name], statements_of(module))
    names = {name_of(module) for module in modules_to_test()}
    lines = [
        f'"{name}" = {{ percent = {one.percent}, statements = {one.statements} }}\n'
        for name, one in sorted(known.items())
        if name in names
    ]
    RECORD.write_text(_HEAD + "".join(lines), encoding="utf-8")


def why_measure_again(module: Module, known: Recorded | None) -> str:
    """Return why the record does not say enough of a module; "" if it does."""
    if name_of(module) in exceptions():
        return ""
    if known is None:
        return "was never measured"
    if known.percent < LEAST_PERCENT:
        return f"is covered to {known.percent:g} %, and {LEAST_PERCENT} % are asked for"
    now = statements_of(module)
    if abs(now - known.statements) > max(10, known.statements // 4):
        return f"had {known.statements} statements when it was measured, and has {now}"
    return ""
