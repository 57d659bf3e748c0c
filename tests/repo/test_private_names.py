"""Private names of other packages are used in ``compat/`` alone.

Not counted are strings that name a place (a frame of ``_pytest``, a class of ``torch._C``), and the
tables of torch's functions in ``observe/torch``: there the names are the subject, hooked or stood
in for, and what a release lacks is left out. ``tests/unit/compat`` asks for each of them.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.repo.sources import PACKAGE, PROJECT, Module, modules

# Names with an underscore that are documented, and attributes of the package's own objects.
PUBLIC = {
    "_exit": "os._exit",
    "_getframe": "sys._getframe",
    "_current_frames": "sys._current_frames",
    "_replace": "a method of every named tuple",
    "_fields": "the fields of a named tuple",
    "_field_defaults": "the defaults of a named tuple",
    "_asdict": "a method of every named tuple",
    "_make": "a method of every named tuple",
}


@dataclass(frozen=True)
class Use:
    """One private name in a module."""

    name: str
    line: int


def uses(module: Module) -> Iterator[Use]:
    """Give the private names that a module uses and neither it nor the package defines."""
    own = names_of_classes() | names_defined(module.tree)
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from private_imports(node)
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            if node.attr not in own:
                yield Use(node.attr, node.lineno)
        elif isinstance(node, ast.Call):
            yield from asked_by_text(node, own)


def is_private(name: str) -> bool:
    """Whether a name is private and not one that Python itself gives a meaning."""
    return name.startswith("_") and not name.startswith("__") and name not in PUBLIC


def private_imports(node: ast.Import | ast.ImportFrom) -> Iterator[Use]:
    """Give imports of private modules, and of private names, of other packages."""
    if isinstance(node, ast.Import):
        targets = [alias.name for alias in node.names]
    else:
        targets = [f"{node.module}.{alias.name}" for alias in node.names]
    for target in targets:
        first, *rest = target.split(".")
        if first not in (PACKAGE, "__future__") and any(map(is_private, [first, *rest])):
            yield Use(target, node.lineno)


def asked_by_text(node: ast.Call, own: set[str]) -> Iterator[Use]:
    """Give names in ``getattr(x, "_name")`` and its likes, and in ``sys.modules.get("a._b")``."""
    function = ast.unparse(node.func)
    if function in ("getattr", "hasattr", "setattr", "delattr"):
        texts = node.args[1:2]
    elif function in ("sys.modules.get", "importlib.import_module"):
        texts = node.args[:1]
    else:
        return
    for text in texts:
        if isinstance(text, ast.Constant) and isinstance(text.value, str):
            parts = text.value.split(".")
            if any(is_private(part) and part not in own for part in parts):
                yield Use(text.value, node.lineno)


def names_defined(tree: ast.Module) -> set[str]:
    """Return the private names that a module defines: functions, classes, attributes of self."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                found.add(node.attr)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return {name for name in found if name.startswith("_")}


@functools.cache
def names_of_classes() -> set[str]:
    """Return the private names of all classes: a subclass in another module uses them."""
    return {
        name
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
        for name in names_defined(ast.Module(node.body, []))
    }


def test_private_names_of_other_packages_are_used_in_compat_alone() -> None:
    wrong = [
        f"{module.path.relative_to(PROJECT)}:{use.line} uses {use.name}"
        for module in modules()
        if not module.short.startswith("compat.")
        for use in uses(module)
    ]
    assert not wrong, (
        "\n".join(wrong) + f"\nprivate names of other packages belong into {PACKAGE}/compat, "
        "with a test in tests/unit/compat"
    )


@pytest.mark.parametrize(
    "source",
    [
        "from _pytest.runner import runtestprotocol",
        "import torch._dynamo",
        "from torch.utils._python_dispatch import TorchDispatchMode",
        "import torch\ntorch._C.f()",
        "def f(item):\n    return item.session._setupstate",
        "def f(x):\n    return getattr(x, '_tw', None)",
        "import sys\nsys.modules.get('torch._C')",
    ],
)
def test_a_use_is_found(source: str) -> None:
    module = Module("example", PROJECT / "example.py")
    module.__dict__["tree"] = ast.parse(source)
    assert list(uses(module))


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos._exit(0)",
        "class A:\n    def f(self):\n        self._x = 1\n        return self._x",
        f"from {PACKAGE}._version import version",
        "def f(x):\n    return getattr(x, '__name__', '')",
    ],
)
def test_what_is_the_packages_own_or_documented_is_not_one(source: str) -> None:
    module = Module("example", PROJECT / "example.py")
    module.__dict__["tree"] = ast.parse(source)
    assert not list(uses(module))
