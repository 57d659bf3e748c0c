"""Sessions of which only the ledger is real, for what reads it when they end."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.observe.base.ledger import Ledger
from pytest_cudafork.observe.handed_on import WatchSettings
from pytest_cudafork.observe.observer import Observer
from pytest_cudafork.settings import Level
from pytest_cudafork.settings.options import Settings

TEST = "test_a.py::test_a"


class LedgerSession:
    """A session of which only its ledger is real.

    Args:
        folder: The project's folder, with the files that stacks name.
        level: The level of the check.
        **reports: What is to be written, as in the settings.

    """

    def __init__(self, folder: Path, level: Level = Level.FORK, **reports: Any) -> None:
        self.root = folder
        self.ledger = Ledger(str(folder / "ledger"))
        self.ledger.create()
        self.owner = str(os.getpid())
        watch_settings = WatchSettings(self.ledger.path, "absent", level.value)
        self.observer = Observer(watch_settings, self.owner)
        self.state: Any = SimpleNamespace(
            settings=Settings(level=level, **reports),
            watch=SimpleNamespace(observer=self.observer),
            isolated=False,
            joined=False,
            reports_home=False,
        )

    def stack(self, line: int, name: str = "test_a", file: str = "test_a.py") -> list[list[Any]]:
        """Return a stack of one frame in the project."""
        return [[str(self.root / file), line, name, 3]]

    def touch(self, line: int = 3, test: str = f"{TEST} (call)", **about: Any) -> str:
        """Write a touch of this process; return its id."""
        given = {
            "entry": "cuInit",
            "poisoned": False,
            "again": False,
            "stack": self.stack(line),
            "test": test,
            "owner": self.owner,
        }
        return self.ledger.append("touch", **{**given, **about})

    def fork(self, line: int = 5, verdict: str = "guarded", **about: Any) -> str:
        """Write a fork of this process; return its id."""
        given = {
            "api": "os.fork",
            "verdict": verdict,
            "state": "initialized",
            "stack": self.stack(line),
            "test": f"{TEST} (call)",
            "owner": self.owner,
        }
        return self.ledger.append("fork", **{**given, **about})


def report(when: Any = "teardown", outcome: Any = "passed", **about: Any) -> pytest.TestReport:
    """Return a report of the test, with these attributes."""
    made = pytest.TestReport(TEST, ("test_a.py", 0, "test_a"), {}, outcome, None, when)
    vars(made).update(about)
    return made
