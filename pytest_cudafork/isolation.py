"""Owns the way from a test's markers to a process of its own, and from fixtures to children.

It does not know how a child is run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cudafork.markers import DEFAULT_TIMEOUT, marks_of
from pytest_cudafork.session import SESSION

if TYPE_CHECKING:
    from pytest_cudafork.fixtures import RunInChild
    from pytest_cudafork.isolate.policy import ProcessState


class IsolationHooks:
    """The hook that takes over isolated tests.

    A plugin object of its own, registered when pytest is configured: later than every installed
    plugin, so it is asked before those that would fork the test (pytest-forked).
    """

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        """Run a test that is marked for it in a process of its own."""
        return run_if_isolated(item, nextitem)


def run_if_isolated(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run the item in a process of its own if its markers ask for it; None leaves it to pytest."""
    marks = marks_of(item)
    if not (marks.spawn_only or marks.isolated):
        return None
    from pytest_cudafork.isolate.parent import isolate
    from pytest_cudafork.isolate.policy import IsolationConfig, choose

    session = item.config.stash[SESSION]
    option = item.config.option
    rules = IsolationConfig(
        timeout=DEFAULT_TIMEOUT,
        # there are no such options with -p no:debugging
        debugger=bool(getattr(option, "usepdb", False) or getattr(option, "trace", False)),
        inside=session.isolated,
    )
    method = choose(marks, rules, _process_state(item.config))
    return None if method is None else isolate(item, nextitem, method)


def _process_state(config: pytest.Config) -> ProcessState:
    from pytest_cudafork.isolate.policy import ProcessState, count_threads
    from pytest_cudafork.state import current_state

    watch = config.stash[SESSION].watch
    state = watch.observer.state() if watch is not None else current_state()
    return ProcessState(cuda=state.verdict.value, threads=count_threads())


def runner(config: pytest.Config, method: str) -> RunInChild:
    """Return the function behind ``run_forked``, ``run_spawned`` or ``run_forkserver``."""
    from pytest_cudafork.isolate.call import run_in_child
    from pytest_cudafork.isolate.forkserver import server_of

    server = server_of(config) if method == "forkserver" else None

    def run(
        fn: Callable[..., Any], /, *args: Any, timeout: float | None = 60.0, **kwargs: Any
    ) -> Any:
        __tracebackhide__ = True
        return run_in_child(method, fn, args, kwargs, timeout=timeout, server=server)

    return run
