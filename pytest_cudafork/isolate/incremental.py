"""Steps: tests of which a later one is not run when an earlier one has failed.

pytest's documentation has a recipe for them, a conftest that is copied widely: for tests with the
marker ``incremental``, ``pytest_runtest_makereport`` notes which one has raised, and
``pytest_runtest_setup`` asks for it. It is noted in the process of the test, so the hook is called
once more where it is asked: in the pytest process, and in the process of each later step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pytest_cudafork.compat.unpatched import contextlib
from pytest_cudafork.isolate import item_names

_MARKER = "incremental"
_RAISED = pytest.StashKey[list[list[Any]]]()
"""What is told to later steps: of each phase that has raised, test, phase and kind of exception."""
_KINDS: dict[str, type[BaseException]] = {
    "skipped": pytest.skip.Exception,
    "xfailed": pytest.xfail.Exception,
    "failed": pytest.fail.Exception,  # and all others
}


def begin(config: pytest.Config, items: Sequence[pytest.Item]) -> bool:
    """Whether a session has steps; if so, those that run in its process are noted from now on."""
    found = any(is_step(item) for item in items)
    if found:
        config.pluginmanager.register(InThisProcess(), "cudafork-incremental")
    return found


def is_step(item: pytest.Item) -> bool:
    """Whether a hook of the recipe notes how a test ends."""
    return _MARKER in item.keywords and bool(_hooks(item))


def _hooks(item: pytest.Item) -> list[Any]:
    """Return the hooks that note: no wrapper, and of a plugin that asks for it; both name it."""
    asking = [one.plugin for one in item.ihook.pytest_runtest_setup.get_hookimpls() if _names(one)]
    return [
        one
        for one in item.ihook.pytest_runtest_makereport.get_hookimpls()
        if one.plugin in asking and _names(one) and not (one.hookwrapper or one.wrapper)
    ]


def _names(hook: Any) -> bool:
    code = getattr(hook.function, "__code__", None)
    return code is not None and _MARKER in code.co_consts


def note(item: pytest.Item, report: pytest.TestReport) -> None:
    """Take note of a phase that was run in another process, here and for later steps."""
    kind = _kind_of(report)
    if kind and is_step(item):
        _keep(item, report.when, kind)
        _tell(item, report.when, kind)


def _kind_of(report: pytest.TestReport) -> str:
    """Return which kind of exception a phase has raised; "" for none."""
    # where an expected failure has not come, there was no exception
    strict = report.longreprtext.startswith("[XPASS(strict)]")
    if report.outcome not in ("failed", "skipped") or strict:
        return ""
    return "xfailed" if hasattr(report, "wasxfail") else report.outcome


def raised_elsewhere(item: pytest.Item, report: pytest.TestReport) -> pytest.CallInfo[None]:
    """Return what hooks get for a phase that was run in another process."""
    return _call_of(item, report.when, _kind_of(report))


def _keep(item: pytest.Item, when: Any, kind: str) -> None:
    if item.parent is not None:
        raised = [item_names.name_of(item), when, kind]
        item.parent.stash.setdefault(_RAISED, []).append(raised)


def pack(items: Sequence[pytest.Item | None]) -> list[Any]:
    """Return what was noted of steps before each of these; None where that adds nothing."""
    told: set[Any] = set()
    packed: list[Any] = []
    for item in items:
        parent = None if item is None else item.parent
        raised = None if parent is None or parent in told else parent.stash.get(_RAISED, None)
        told.add(parent)
        packed.append(raised)
    return packed


def enter(
    item: pytest.Item, packed: Sequence[Any], find: Callable[[Any], pytest.Item | None]
) -> None:
    """Take note, in the process of a step, of what was noted of those before it."""
    for name, when, kind in packed:
        step = find(name)
        if step is not None:
            _tell(step, when, kind)


def _tell(item: pytest.Item, when: Any, kind: str) -> None:
    """Call the hooks of the recipe for a phase that has raised elsewhere."""
    known = {"item": item, "call": _call_of(item, when, kind)}
    for one in _hooks(item):
        # what else it does needs a test that was set up; where that was, it has done it
        with contextlib.suppress(Exception):
            one.function(*[known[name] for name in one.argnames])


def _call_of(item: pytest.Item, when: Any, kind: str) -> pytest.CallInfo[None]:
    def end() -> None:
        if kind:
            raise _KINDS[kind](f"the {when} of {item.name} has raised, in another process")

    return pytest.CallInfo.from_call(end, when)


class InThisProcess:
    """The plugin object that takes note of steps which run in this process."""

    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[Any]) -> None:
        """Take note of a phase that has raised."""
        if call.excinfo is not None and is_step(item):
            error = call.excinfo.value
            kinds = (kind for kind, of in _KINDS.items() if isinstance(error, of))
            _keep(item, call.when, next(kinds, "failed"))
