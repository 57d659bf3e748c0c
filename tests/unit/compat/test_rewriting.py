"""Modules that pytest was to rewrite are imported as they are."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest
from _pytest.assertion.rewrite import AssertionRewritingHook

from pytest_cudafork.compat.rewriting import leave_as_written
from tests.unit.compat import require


@pytest.fixture
def hook(
    pytestconfig: pytest.Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[AssertionRewritingHook]:
    """A hook that is to rewrite two packages, before the others."""
    for name in ("apple", "pear"):
        (tmp_path / name).mkdir()
        for module in ("__init__", "core"):
            (tmp_path / name / f"{module}.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    made = AssertionRewritingHook(pytestconfig)
    made.mark_rewrite("apple", "pear")
    monkeypatch.setattr(sys, "meta_path", [made, *sys.meta_path])
    yield made
    for name in ("apple", "apple.core", "pear", "pear.core"):
        sys.modules.pop(name, None)


def loader_of(name: str) -> type:
    return type(importlib.import_module(name).__loader__)


def test_pytest_still_has_the_names(hook: AssertionRewritingHook) -> None:
    for name in ("_must_rewrite", "_marked_for_rewrite_cache"):
        require("pytest", hook, name, "modules of the plugin that are not rewritten")


@pytest.mark.usefixtures("hook")
def test_the_rest_of_a_package_is_imported_by_python() -> None:
    assert loader_of("apple") is AssertionRewritingHook
    leave_as_written("apple")
    assert loader_of("apple.core") is SourceFileLoader
    assert loader_of("pear.core") is AssertionRewritingHook


def test_a_pytest_without_these_names_rewrites(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [AssertionRewritingHook.__new__(AssertionRewritingHook)])
    leave_as_written("apple")


_INSTALLED = """
import sys

def test_modules():
    loaded = {name: type(module.__loader__).__name__ for name, module in sys.modules.items()
              if name.startswith("pytest_cudafork.")}
    rewritten = [name for name, loader in loaded.items() if loader != "SourceFileLoader"]
    assert "pytest_cudafork.plugin" in rewritten and len(rewritten) < 6 < len(loaded)
"""


@pytest.mark.fresh_interpreter("a server has imported the modules ahead")
def test_an_installed_plugin_is_not_rewritten(pytester: pytest.Pytester) -> None:
    """As a wheel is installed: pytest finds the package in the record of a distribution."""
    described = pytester.mkdir("installed-1.0.dist-info")
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: installed\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text("[pytest11]\ninstalled = cudafork_installed\n")
    (described / "RECORD").write_text("pytest_cudafork/__init__.py,,\ncudafork_installed.py,,\n")
    pytester.makepyfile(cudafork_installed="", test_it=_INSTALLED)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)
