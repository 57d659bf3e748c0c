"""Runs sessions with other plugins in one process and isolated, and compares them.

Each plugin is loaded in the inner sessions alone, by name.
"""

from __future__ import annotations

import importlib.util
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.isolation_compare import Seen, Sessions, differences

FORKS = ("fork", "forkserver")

PLUGINS = {
    "allure": "allure_pytest.plugin",
    "anyio": "anyio.pytest_plugin",
    "asyncio": "pytest_asyncio.plugin",
    "bdd": "pytest_bdd.plugin",
    "benchmark": "pytest_benchmark.plugin",
    "cov": "pytest_cov.plugin",
    "dependency": "pytest_dependency",
    "depends": "pytest_depends",
    "html": "pytest_html.plugin",
    "hypothesis": "_hypothesis_pytestplugin",
    "inline-snapshot": "inline_snapshot.pytest_plugin",
    "instafail": "pytest_instafail",
    "json-report": "pytest_jsonreport.plugin",
    "metadata": "pytest_metadata.plugin",
    "mock": "pytest_mock",
    "order": "pytest_order",
    "pyfakefs": "pyfakefs.pytest_plugin",
    "randomly": "pytest_randomly",
    "reportlog": "pytest_reportlog.plugin",
    "rerunfailures": "pytest_rerunfailures",
    "socket": "pytest_socket",
    "steps": "pytest_steps.plugin",
    "sugar": "pytest_sugar",
    "syrupy": "syrupy",
    "time-machine": "time_machine",
    "timeout": "pytest_timeout",
    "xdist": "xdist.plugin",
}
"""Short name to module."""


def needs(name: str) -> str:
    """Return the module of a plugin; skip where it is not installed."""
    module = PLUGINS[name]
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        pytest.skip(f"{module.partition('.')[0]} is not installed")
    return module


def write(path: Path, files: dict[str, str]) -> None:
    """Write source files into a new directory."""
    for name, source in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(textwrap.dedent(source), encoding="utf-8")


def same(
    tmp_path: Path,
    methods: Sequence[str],
    plugins: list[str],
    files: dict[str, str],
    *runs: str,
    known: tuple[str, ...] = (),
    keeps: tuple[str, ...] = (),
) -> dict[str, list[Seen]]:
    """Run in one process and isolated by each method, compare, and return the isolated sessions.

    All run in the same place, one after the other. The first project is left in ``before``, that
    of each method under its name.
    """
    modules = [needs(plugin) for plugin in plugins]
    project = tmp_path / "project"
    found: dict[str, list[Seen]] = {}
    for method in ("", *methods):
        write(project, {"pytest.ini": "[pytest]\n", **files})
        sessions = Sessions(project, "-rA", "-v", plugins=modules, keeps=keeps)
        found[method] = sessions.history(method, *(run.split() for run in runs))
        project.rename(tmp_path / (method or "before"))
    expected = found.pop("")
    different = [
        f"{method} {run}\n{difference}"
        for method in methods
        for run, before, after in zip(runs, expected, found[method], strict=True)
        if (difference := differences(before, after, known))
    ]
    assert not different, "\n\n".join(different)
    return found
