"""Rewrites the asserts of what workers are about to import, each module in one worker alone.

pytest compiles test modules, and the plugin's own, in a form of its own, and keeps that beside
Python's. In a fresh checkout there is none yet, and workers that collect the same modules side by
side would each make all of them. So each makes its share before it collects.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from _pytest.assertion import rewrite

_FOLDERS = ("tests", "pytest_cudafork")
# Specimens are projects of their own: no worker imports a module of them.
_LEFT_OUT = "tests/specimens/*/*/**/*.py"


def modules(root: Path) -> list[Path]:
    """Return the files of the modules that a worker may import, in one order everywhere."""
    left_out = set(root.glob(_LEFT_OUT))
    return sorted(
        file
        for folder in _FOLDERS
        for file in (root / folder).rglob("*.py")
        if file not in left_out
    )


def rewrite_share(config: pytest.Config, root: Path) -> list[Path]:
    """Rewrite, in a worker, its share of the modules; returns those that pytest wants rewritten."""
    worker: dict[str, Any] | None = getattr(config, "workerinput", None)
    if worker is None or sys.dont_write_bytecode:
        return []
    number = int(worker["workerid"].removeprefix("gw"))
    files = modules(root)[number % worker["workercount"] :: worker["workercount"]]
    return list(rewritten(config.pluginmanager.rewrite_hook, files, root))


def rewritten(hook: Any, files: Sequence[Path], root: Path) -> Iterator[Path]:
    """Rewrite those modules that the hook would rewrite on import, and give their files.

    The hook itself decides, and writes what it makes; only the execution of the module is left out.
    """
    for file in files:
        name = ".".join(file.relative_to(root).with_suffix("").parts)
        spec = hook.find_spec(name, [str(file.parent)])
        if spec is None:
            continue
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rewrite, "exec", lambda code, names: None, raising=False)
            try:
                hook.exec_module(importlib.util.module_from_spec(spec))
            except (SyntaxError, ValueError):
                continue  # the collection tells what is wrong with it
        yield file
