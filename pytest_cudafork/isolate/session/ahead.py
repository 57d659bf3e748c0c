"""Which tests a process of several may go on to by itself, without being told to for each.

It goes on while all goes well; what a test is reported to is asked after every failure. So it must
be certain before a test has run what comes after it: pytest's own loop, and no hook that has a say
in what happens between two tests, or that may change what the next one finds around itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType

import pytest

from pytest_cudafork.check.session import SESSION
from pytest_cudafork.isolate import live_text
from pytest_cudafork.settings.markers import CHILD_ENV, marks_of

MOST = 64
"""How many tests an order names."""
_HOOKS = (
    "pytest_runtest_logfinish",
    "pytest_runtest_logreport",
    "pytest_runtest_logstart",
    "pytest_runtest_protocol",
    "pytest_runtestloop",
    "pytest_warning_recorded",
)
"""What is called in the pytest process from one test to the next."""
_WITHOUT_A_SAY = (
    "_pytest.",
    "pytest_cudafork.check.",
    "pytest_cudafork.gpus.lease",
    "pytest_cudafork.health.summary",
    "pytest_cudafork.isolate.",
    "pytest_cudafork.report.",
)
"""Modules whose hooks change nothing that the next test depends on, unless a test has failed."""


def may_work_ahead(item: pytest.Item) -> bool:
    """Whether what comes after a test is certain, if that passes."""
    config = item.config
    if hasattr(config, "workerinput"):  # the controller decides what comes
        return False
    if live_text.is_direct(config) or config.stash[SESSION].settings.settle is not None:
        return False
    if marks_of(item).gpus or item.stash.get(CHILD_ENV, None):
        return False
    return all(
        _name(one.plugin).startswith(_WITHOUT_A_SAY)
        for hook in _HOOKS
        for one in getattr(config.hook, hook).get_hookimpls()
    )


def after_next(
    item: pytest.Item,
    nextitem: pytest.Item,
    place: int | None,
    goes_with: Callable[[pytest.Item, pytest.Item], bool],
) -> Sequence[pytest.Item | None]:
    """Return the tests after the next that share its process, and None if they are all.

    Args:
        item: The test whose turn it is.
        nextitem: The one that follows it, in the same process.
        place: That of ``item`` among the tests of the session.
        goes_with: Whether two tests that follow each other share a process.

    """
    items = item.session.items
    if place is None or items[place : place + 2] != [item, nextitem] or not may_work_ahead(item):
        return ()
    found: list[pytest.Item | None] = []
    before = nextitem
    for one in items[place + 2 : place + MOST]:
        if not goes_with(before, one):
            return [*found, None]
        found.append(one)
        before = one
    return found if place + MOST < len(items) else [*found, None]


def _name(plugin: object) -> str:
    return plugin.__name__ if isinstance(plugin, ModuleType) else type(plugin).__module__
