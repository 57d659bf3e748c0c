"""Where the native libraries were not built, what to do depends on where the code lies."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import pytest_cudafork
from tests.support.imports import command_line, write_package

PROJECT = Path(pytest_cudafork.__file__).parent.parent


@pytest.mark.parametrize("is_checkout", [True, False], ids=["checkout", "installed"])
def test_how_to_build_them(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, is_checkout: bool
) -> None:
    folder = pytester.mkdir("elsewhere")
    ignore = shutil.ignore_patterns("lib", "__pycache__", "*.c", "*.h")
    shutil.copytree(PROJECT / "pytest_cudafork", folder / "pytest_cudafork", ignore=ignore)
    if is_checkout:
        shutil.copy(PROJECT / "setup.py", folder)
    write_package(pytester.path, "pkg", {"__init__": "", "one": ""})
    monkeypatch.setenv("PYTHONPATH", str(folder))
    result = command_line(pytester, "pkg", "-v")
    assert result.ret == 2
    out = result.stdout.str()
    wish = f"run `python setup.py build_native --inplace` in {folder}"
    assert (wish in out) is is_checkout
    assert ("pip install --force-reinstall" in out) is not is_checkout
    assert "not observable: pkg, pkg.one: " in out
    assert "was not built." in out
