"""The page on what could be done to the runner: each test that it names is there."""

from __future__ import annotations

import ast
import re
import sys
from typing import Any

import pytest

from tests.repo.sources import PROJECT
from tests.repo.tools_support import load

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

check_security = load("check_security")
PAGE = PROJECT / "docs" / "explanation" / "threat-model.md"
LEAST_CLOSED = 24
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE.read_text(encoding="utf-8"))))


@pytest.mark.parametrize(("file", "test"), NAMED)
def test_a_test_that_closes_an_attack_is_there(file: str, test: str) -> None:
    tree = ast.parse((PROJECT / file).read_text(encoding="utf-8"))
    functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert test in functions


def test_every_row_is_closed_by_a_test_or_stated() -> None:
    rows = re.findall(r"^\| (?!attack|---)(.*) \| (.*) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    open_ones = [
        attack
        for attack, outcome in rows
        if not ("closed" in outcome and "::test_" in outcome) and "**stated**" not in outcome
    ]
    assert not open_ones
    assert sum("closed" in outcome for _, outcome in rows) >= LEAST_CLOSED


def test_native_code_obeys_no_variable_where_it_has_more_rights() -> None:
    sources = list((PROJECT / check_security.NATIVE).glob("*.c"))
    assert any("secure_getenv(" in path.read_text("utf-8") for path in sources)
    plain = [
        f"{path.name}:{number}"
        for path in sources
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1)
        if re.search(r"(?<!secure_)\bgetenv\(|\benviron\b", line)
    ]
    assert not plain


def explained() -> dict[str, Any]:
    rows: dict[str, Any] = tomllib.loads(check_security.EXPLAINED.read_text(encoding="utf-8"))
    return rows


def test_each_finding_that_is_explained_has_a_sentence_and_a_file() -> None:
    rows = explained()
    left_out = [*rows["clang_tidy_without"].values(), *rows["bandit_without"].values()]
    for reason in (*left_out, *(each["reason"] for each in rows["finding"])):
        assert reason.endswith(".")
    assert all((PROJECT / each["file"]).is_file() for each in rows["finding"])


def test_a_new_finding_and_one_that_is_gone_are_told() -> None:
    row = {"tool": "gcc", "rule": "leak", "file": "a.c", "reason": "None."}
    assert check_security.differences({("gcc", "leak", "a.c"): 1}, [row]) == []
    assert check_security.differences({("gcc", "leak", "a.c"): 2}, [row]) == [
        "gcc leak a.c: 2 found, 1 explained"
    ]
    assert check_security.differences({}, [row]) == ["gcc leak a.c: 0 found, 1 explained"]
    assert check_security.differences({("gcc", "race", "b.c"): 1}, [])


def test_an_analyser_reads_the_standard_library_by_its_own_names() -> None:
    code = (
        "from pytest_cudafork.compat.unpatched import os, pickle  # as they were\n"
        "from pytest_cudafork.compat.unpatched import (\n    io,\n    re,  # late\n)\n"
        "def f():\n    from pytest_cudafork.compat.unpatched import time\n    return pickle.loads\n"
        "from pytest_cudafork.compat import unpatched\n"
    )
    assert check_security.with_plain_imports(code) == (
        "import os, pickle\nimport io, re\n\n\n\n"
        "def f():\n    import time\n    return pickle.loads\n"
        "from pytest_cudafork.compat import unpatched\n"
    )


def test_no_module_hides_the_standard_library_from_an_analyser() -> None:
    hidden = [
        path.relative_to(PROJECT).as_posix()
        for path in sorted((PROJECT / check_security.PACKAGE).rglob("*.py"))
        if "unpatched import" in check_security.with_plain_imports(path.read_text("utf-8"))
    ]
    assert not hidden
