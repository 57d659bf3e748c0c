"""Which test file is a module's own, and which modules need not be covered by theirs."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from tests.repo.sources import PACKAGE, PROJECT, Module, modules

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

UNIT = PROJECT / "tests" / "unit"
EXCEPTIONS = PROJECT / "tests" / "repo" / "not_covered_by_name.toml"


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
