"""What several tests of the repository use."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.repo.sources import PROJECT
from tests.support import interpreter_servers

BENCHMARKS = PROJECT / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Import a module of the benchmarks, which are scripts and no package."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(f"{BENCHMARKS}/"):
            del sys.modules[name]


@pytest.fixture(scope="module")
def servers() -> Iterator[interpreter_servers.Servers]:
    """Servers of the tests of a module, started when they are asked for the first time."""
    servers = interpreter_servers.Servers()
    yield servers
    servers.close()
