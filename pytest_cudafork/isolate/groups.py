"""Which isolated tests share a process: those of one class or file that follow each other."""

from __future__ import annotations

import pytest

from pytest_cudafork.check.session import SESSION
from pytest_cudafork.compat.plugins import steps
from pytest_cudafork.health import fitness
from pytest_cudafork.settings.markers import marks_of

_ALONE = "test"


def scope_of(item: pytest.Item) -> str:
    """Return the scope of an isolated test's process: "test", "class" or "module".

    The test's marker says so, else the session. Tests that were not meant to be isolated, and are
    because the pytest process is broken, share one for each file.
    """
    marks = marks_of(item)
    if marks.fixtures == "inherit":
        return _ALONE  # a shared process cannot inherit the fixtures of each
    said = marks.scope or item.config.stash[SESSION].settings.isolate_scope
    if said:
        return said
    meant = marks.isolated or marks.spawn_only
    return _ALONE if meant or fitness.recovering_from(item.config) is None else "module"


def share_process(item: pytest.Item, nextitem: pytest.Item) -> bool:
    """Whether two isolated tests that follow each other run in one process.

    As for fixtures, a function outside any class has "class" for itself. Tests do not share a
    process that ask for different ones (by method, by GPUs, or by variables); time limits may
    differ. The steps of one function of pytest-steps share one whatever the scope.
    """
    scope = scope_of(item)
    marks, others = marks_of(item), marks_of(nextitem)
    if scope_of(nextitem) != scope or (scope == _ALONE and not _are_steps_of_one(item, nextitem)):
        return False
    if others.complaint or others.left_alone or others.gpus != marks.gpus:
        return False
    if (marks.method, marks.spawn_only, marks.env) != (
        others.method,
        others.spawn_only,
        others.env,
    ):
        return False
    if scope == "class":
        ours, theirs = (one.getparent(pytest.Class) for one in (item, nextitem))
        return ours is not None and theirs is not None and ours.nodeid == theirs.nodeid
    return item.path == nextitem.path


def _are_steps_of_one(item: pytest.Item, nextitem: pytest.Item) -> bool:
    function = steps.function_of(item)
    if function is None or marks_of(item).fixtures == "inherit":
        return False
    return function == steps.function_of(nextitem)
