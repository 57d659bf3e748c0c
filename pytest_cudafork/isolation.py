"""Owns the way from a test's markers to a process of its own, and from fixtures to children.

It does not know how children are run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_cudafork.markers import MarkerError, read_marks

if TYPE_CHECKING:
    from pytest_cudafork.fixtures import RunInChild


def run_if_isolated(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    try:
        marks = read_marks(item)
    except MarkerError:
        return None  # the test fails for it in its set-up
    if not (marks.spawn_only or marks.isolated):
        return None
    return None


def runner(config: pytest.Config, method: str) -> RunInChild:
    raise NotImplementedError


def close(config: pytest.Config) -> None:
    return
