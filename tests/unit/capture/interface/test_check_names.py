"""Every check has one name, which the reference lists and the code uses."""

from __future__ import annotations

import ast
from typing import get_args

import pytest

from pytest_cudafork.capture.interface.check_names import CheckName
from tests.repo.sources import PROJECT, modules

NAMES = get_args(CheckName)


def test_the_reference_lists_them_in_this_order() -> None:
    text = (PROJECT / "docs/reference/graphs.md").read_text(encoding="utf-8")
    table = text.partition("| check | says |")[2].partition("\n\n")[0]
    listed = [line.split("`")[1] for line in table.splitlines() if line.startswith("| `")]
    assert listed == list(NAMES)


@pytest.mark.slow
def test_findings_bear_no_other_name() -> None:
    used: dict[str, str] = {}
    for module in modules():
        if not module.short.startswith("capture."):
            continue
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            called = ast.unparse(node.func).rpartition(".")[2]
            first = node.args[0]
            text = first.value if isinstance(first, ast.Constant) else None
            if called in ("CaptureFinding", "add", "did") and isinstance(text, str):
                used[text] = f"{module.short}:{node.lineno}"
    unknown = {name: where for name, where in used.items() if name not in NAMES}
    assert not unknown
    assert len(used) > 10, "the names were looked for in the wrong places"
