"""Lets hooks around reports hear of a body that ran in another process, where its fixtures are.

A fixture may ask how its test went when it is torn down: what a conftest has noted in a wrapper of
``pytest_runtest_makereport`` (a recipe of pytest's documentation), or pytest itself for
``tmp_path``, which it keeps for tests that fail. The report of the body is made in the process of
the body, and changed there by these hooks. Here they get a copy, for what they note.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pluggy
import pytest

from pytest_cudafork.compat.unpatched import contextlib
from pytest_cudafork.isolate.incremental import raised_elsewhere

_NOT_TOLD = ("_pytest", "pytest_cudafork")
"""Packages whose hooks around reports judge them, which was done where they were made."""
_OF_TMP_PATH = "_pytest.tmpdir"


def hear(item: pytest.Item, report: pytest.TestReport) -> None:
    """Have the wrappers of ``pytest_runtest_makereport`` called around this report of a body."""
    shown = copy.copy(report)
    shown.sections, shown.user_properties = [*report.sections], [*report.user_properties]
    known = {"item": item, "call": raised_elsewhere(item, report)}
    for one in _wrappers(item):
        # it has come through where the report was made; here it may lack what it looks for
        with contextlib.suppress(Exception):
            steps = one.function(*[known[name] for name in one.argnames])
            next(steps)
            steps.send(pluggy.Result.from_call(lambda: shown) if one.hookwrapper else shown)


def _wrappers(item: pytest.Item) -> Iterator[Any]:
    """Yield the wrappers that may note something, the innermost first."""
    for one in item.ihook.pytest_runtest_makereport.get_hookimpls():
        module = str(getattr(one.function, "__module__", ""))
        told = module == _OF_TMP_PATH or module.partition(".")[0] not in _NOT_TOLD
        if told and (one.hookwrapper or one.wrapper):
            yield one
