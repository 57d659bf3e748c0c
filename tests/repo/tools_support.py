"""Imports the scripts of ``tools/`` for the tests beside it; they are no part of a package."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest

from tests.repo.sources import PROJECT


def load(name: str) -> ModuleType:
    """Import a script of ``tools/``, and with it those that it imports from there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(PROJECT / "tools"))
        return importlib.import_module(name)
