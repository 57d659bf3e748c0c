"""Importing the plugin brings in few modules and none that are heavy, at any time of a session.

How long it takes is measured by benchmarks/bench_import.py: a time is no test.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.fresh_interpreter("what a session imports is what this is about"),
]

MOST_NEW_MODULES = 23
HEAVY = ("torch", "numpy", "triton", "cupy", "numba", "jax")
# Part of Python, but each costs a session that never uses it more than the whole plugin does.
LATE = ("ast", "ctypes", "multiprocessing", "cloudpickle")

IMPORT = """
import json, sys
import pytest
before = set(sys.modules)
import pytest_cudafork.plugin
print(json.dumps(sorted(set(sys.modules) - before)))
"""

# What tells of a refused fork, and what that needs: most processes refuse none.
FOR_STORIES = ("ast", "dataclasses", "inspect", "pytest_cudafork.observe.story")

# What records of an audit, and audits of a change, need: an import of one module does without.
FOR_RECORDS = (
    *("ast", "dataclasses", "hashlib", "inspect"),
    *("pytest_cudafork.imports.values.records", "pytest_cudafork.observe.story.touch"),
)
IMPORTS_A_MODULE = "import sys, pytest_cudafork.imports.worker.job; print(*sys.modules)"

STARTS = """
import subprocess, sys

def test_starts():
    tells = "import sys; print(*sys.modules)"
    print(subprocess.check_output([sys.executable, "-c", tells], text=True))
"""

LISTENER = """
import json, sys
import pytest

HEAVY = {heavy!r}

def note(when):
    with open({path!r}, "a") as file:
        file.write(json.dumps([when, sorted(set(HEAVY) & set(sys.modules))]) + "\\n")

note("conftest")

@pytest.hookimpl(trylast=True)
def pytest_sessionfinish():
    note("sessionfinish")

@pytest.hookimpl(trylast=True)
def pytest_unconfigure():
    note("unconfigure")
"""


def imported_by_plugin() -> list[str]:
    """Return the modules that importing the plugin adds to those of pytest."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORT], stdout=subprocess.PIPE, text=True, check=True
    )
    return [str(name) for name in json.loads(done.stdout)]


def test_importing_the_plugin_adds_few_modules() -> None:
    new = imported_by_plugin()
    assert "pytest_cudafork.plugin" in new
    assert len(new) <= MOST_NEW_MODULES, f"{len(new)} modules: {new}"


def test_importing_the_plugin_imports_nothing_heavy() -> None:
    new = set(imported_by_plugin())
    assert not new & {*HEAVY, *LATE}


def test_no_annotation_of_a_named_tuple_is_compiled_while_the_plugin_is_imported() -> None:
    """A module with ``from __future__ import annotations`` has texts for NamedTuple to compile."""
    files = [
        file
        for name in imported_by_plugin()
        if (spec := find_spec(name))
        and spec.origin
        and "(NamedTuple):" in Path(file := spec.origin).read_text("utf-8")
    ]
    assert files
    late = "from __future__ import annotations"
    assert not [file for file in files if late in Path(file).read_text("utf-8")]


@pytest.mark.parametrize("args", [(), ("--cuda-fork-check",), ("--cuda-fork-check=touch",)])
def test_no_session_imports_anything_heavy_by_itself(
    pytester: pytest.Pytester, args: tuple[str, ...]
) -> None:
    notes = pytester.path / "notes.jsonl"
    pytester.makeconftest(LISTENER.format(heavy=HEAVY, path=str(notes)))
    pytester.makepyfile("def test_nothing(): pass")
    result = pytester.runpytest_subprocess(*args)
    result.assert_outcomes(passed=1)
    told = [json.loads(line) for line in notes.read_text(encoding="utf-8").splitlines()]
    assert told == [["conftest", []], ["sessionfinish", []], ["unconfigure", []]]


def test_a_watched_process_imports_nothing_of_stories_at_its_start(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(STARTS)
    result = pytester.runpytest_subprocess("--cuda-fork-check", "--cuda-fork-device=phantom", "-s")
    result.assert_outcomes(passed=1)
    (imported,) = (line.split() for line in result.outlines if "importlib" in line)
    assert "pytest_cudafork.check.refusal" in imported
    assert not set(imported) & set(FOR_STORIES)


def test_a_process_that_imports_a_module_for_an_audit_needs_no_records_and_no_stories() -> None:
    command = [sys.executable, "-c", IMPORTS_A_MODULE]
    imported = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    assert "pytest_cudafork.imports.worker.importer" in imported
    assert not set(imported) & set(FOR_RECORDS)
