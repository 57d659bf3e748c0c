"""Each record that the docs name is made by a part of ``make bench``, or listed as made by hand.

The parts are those of ``benchmarks/record_parts.py`` and ``benchmarks/long_parts.py``; what is made
by hand stands in ``records_by_hand.toml`` with why no part makes it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.repo.conftest import BENCHMARKS
from tests.repo.sources import PROJECT
from tests.repo.test_figures import pages
from tests.support import interpreters

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

RESULTS = BENCHMARKS / "results"
BY_HAND = Path(__file__).with_name("records_by_hand.toml")
_RECORD = re.compile(r"benchmarks/results/([\w.-]+\.md)")


def named() -> set[str]:
    """Return the records that the README and the docs name."""
    return {name for page in pages() for name in _RECORD.findall(page.read_text(encoding="utf-8"))}


def by_hand() -> dict[str, str]:
    """Return the records that no part makes, with why."""
    found: dict[str, str] = tomllib.loads(BY_HAND.read_text(encoding="utf-8"))["records"]
    return found


@pytest.fixture
def parts(benchmark: Callable[[str], Any]) -> list[Any]:
    """All parts, of both kinds of machine."""
    short, long = benchmark("record_parts"), benchmark("long_parts")
    return [
        part
        for listed in (short.CPU, short.GPU, long.LONG_CPU, long.LONG_GPU)
        for part in listed.values()
    ]


def commands(text: str) -> set[str]:
    """Return what a record says it was made by: scripts, and modules run with ``-m``."""
    return set(re.findall(r"python (?:-m )?([\w./]+)", text))


def test_each_record_of_the_docs_is_made_by_a_part_or_listed_as_made_by_hand(
    parts: list[Any],
) -> None:
    made_by = {part.script for part in parts} | {"benchmarks/bench_all.py"}
    lost = [
        name
        for name in named()
        if not made_by & commands((RESULTS / name).read_text(encoding="utf-8"))
    ]
    assert sorted(lost) == sorted(by_hand())
    assert all(by_hand().values())


def test_each_part_is_a_script_that_keeps_a_record_with_the_shared_options(
    parts: list[Any],
) -> None:
    for part in parts:
        path = part.script if part.script.endswith(".py") else part.script.replace(".", "/") + ".py"
        text = (PROJECT / path).read_text(encoding="utf-8")
        assert "publish(" in text, path
        assert re.search(r"\bparser\(", text), path


def test_no_benchmark_has_a_command_line_without_the_shared_options() -> None:
    files = sorted(BENCHMARKS.glob("*.py"))
    own = [file.name for file in files if "ArgumentParser(" in file.read_text()]
    # it searches for configurations, and measures nothing that is kept
    assert own == ["results_file.py", "sweep_model_kernels.py"]


_IMPORT = re.compile(r"^ *(?:from|import) (\w+)", re.MULTILINE)


def reached(script: Path) -> set[str]:
    """Return the first names of what a script imports, and the benchmarks beside it with it."""
    found: set[str] = set()
    todo = [script]
    while todo:
        for name in set(_IMPORT.findall(todo.pop().read_text(encoding="utf-8"))) - found:
            found.add(name)
            beside = BENCHMARKS / f"{name}.py"
            todo += [beside] if beside.is_file() else []
    return found


def test_a_script_that_imports_of_the_checkout_finds_it() -> None:
    # bench_all.py hands on no PYTHONPATH
    for script in BENCHMARKS.glob("*.py"):
        text = script.read_text(encoding="utf-8")
        if '__name__ == "__main__"' in text and reached(script) & {"sample_engine", "tests"}:
            assert "sys.path.insert(0" in text, script.name


_OTHERS = ("tests.specimens.graphs", "tools/compare_revisions.py")
"""What keeps records and is no part."""


@pytest.mark.slow
def test_what_keeps_records_and_is_no_benchmark_finds_what_they_share(
    parts: list[Any], tmp_path: Path
) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    elsewhere = {part.script for part in parts if not part.script.startswith("benchmarks/")}
    for script in sorted(elsewhere | set(_OTHERS)):
        command = [str(PROJECT / script)] if script.endswith(".py") else ["-m", script]
        cwd = tmp_path if script.endswith(".py") else PROJECT
        done = interpreters.run(
            [sys.executable, *command, "--help"], cwd=cwd, env=environ, timeout=120
        )
        assert "--save" in done.stdout, f"{script}: {done.stderr}"
