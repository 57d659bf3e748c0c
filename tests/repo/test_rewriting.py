"""Each module that pytest rewrites is rewritten by one worker, before it collects."""

from __future__ import annotations

import importlib.machinery
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from _pytest.assertion import rewrite

from tests.support import rewriting

TEXT = "assert False, 'it was executed'\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with five modules and a specimen."""
    for name in (
        *("tests/conftest.py", "tests/test_a.py", "tests/test_b.py", "tests/support/helper.py"),
        *("pytest_cudafork/plugin.py", "tests/specimens/one/buggy/test_it.py"),
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(TEXT)
    return tmp_path


def config_of(pytestconfig: pytest.Config, **words: Any) -> Any:
    """A stand-in for the settings of a session; the hook is this session's."""
    return SimpleNamespace(pluginmanager=pytestconfig.pluginmanager, **words)


def test_specimens_are_left_out(root: Path) -> None:
    names = [file.relative_to(root).as_posix() for file in rewriting.modules(root)]
    assert names == [
        *("pytest_cudafork/plugin.py", "tests/conftest.py"),
        *("tests/support/helper.py", "tests/test_a.py", "tests/test_b.py"),
    ]


def test_workers_share_what_pytest_rewrites_and_execute_nothing(
    root: Path, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    shares = [
        rewriting.rewrite_share(
            config_of(pytestconfig, workerinput={"workerid": f"gw{number}", "workercount": 2}), root
        )
        for number in range(2)
    ]
    done = [file for share in shares for file in share]
    assert all(shares)
    assert len(done) == len(set(done))
    # what lies beside tests is rewritten where the metadata of this checkout lists it
    beside = {root / "tests" / name for name in ("conftest.py", "test_a.py", "test_b.py")}
    assert beside <= set(done)
    files = rewriting.modules(root)
    assert all(set(share) <= set(files[number::2]) for number, share in enumerate(shares))
    caches = [file.name.partition(".")[0] for file in root.rglob("*pytest*.pyc")]
    assert sorted(caches) == sorted(file.stem for file in done)


def test_what_was_written_is_what_an_import_takes(
    root: Path, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    hook: Any = pytestconfig.pluginmanager.rewrite_hook
    file = root / "tests" / "test_a.py"
    assert list(rewriting.rewritten(hook, [file], root)) == [file]
    monkeypatch.setattr(rewrite, "_rewrite_test", lambda *_: pytest.fail("once more"))
    module = ModuleType("tests.test_a")
    module.__spec__ = importlib.machinery.ModuleSpec("tests.test_a", hook, origin=str(file))
    with pytest.raises(AssertionError, match="it was executed"):
        hook.exec_module(module)


def test_what_cannot_be_compiled_is_left_to_the_collection(
    root: Path, pytestconfig: pytest.Config
) -> None:
    file = root / "tests" / "test_a.py"
    file.write_text("def (")
    hook: Any = pytestconfig.pluginmanager.rewrite_hook
    assert list(rewriting.rewritten(hook, [file], root)) == []


def test_a_session_without_workers_and_one_that_writes_nothing_rewrite_nothing(
    root: Path, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert rewriting.rewrite_share(config_of(pytestconfig), root) == []
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    worker = {"workerid": "gw0", "workercount": 1}
    assert rewriting.rewrite_share(config_of(pytestconfig, workerinput=worker), root) == []
