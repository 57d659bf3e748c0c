"""Which modules were being imported at a touch, and how those outside the package are named."""

from __future__ import annotations

import pytest

from pytest_cudafork.imports.graph.import_graph import build_graph
from pytest_cudafork.imports.values.records import ImportRecord, ImportVerdict
from tests.support.imports_graph import (
    touch_with,
)


@pytest.mark.parametrize(
    ("filename", "name"),
    [
        ("/venv/lib/python3.11/site-packages/flash/iface.py", "flash.iface"),
        ("/venv/lib/python3.11/site-packages/flash/__init__.py", "flash"),
        ("/src/deep/down/loaded/mod.py", "loaded.mod"),
        ("/src/unknown.py", "unknown"),
        ("<string>", "<string>"),
        ("a\0b", "a\0b"),
    ],
)
def test_a_module_outside_the_package_is_named_by_its_path(filename: str, name: str) -> None:
    machinery = ["<frozen importlib._bootstrap>", 241, "_call_with_frames_removed", 3]
    touch = touch_with([[filename, 2, "<module>", 0], machinery])
    record = ImportRecord(
        "pkg",
        "pkg",
        ImportVerdict.TOUCHES,
        touches=(touch,),
        loaded=("loaded", "loaded.mod", "mod"),
    )
    assert build_graph([], [record]).trails["pkg"][0].module == name
