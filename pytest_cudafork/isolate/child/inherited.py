"""The child's side of a test whose body alone runs here: its fixtures were set up in the parent."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pytest_cudafork.compat import pytest_internals, standard_library
from pytest_cudafork.compat.pytest_reports import ENDS_SESSION, sections_of
from pytest_cudafork.compat.unpatched import contextlib, inspect, pickle
from pytest_cudafork.isolate.child.rehearsal import OwnHooks
from pytest_cudafork.process.protocol import frames

SHOWS_WARNINGS = pytest.StashKey[standard_library.Shows]()
"""What a fixture of the parent's has put in force to record warnings, as ``recwarn`` does."""


class _InTheParent:
    """Stands for a fixture that the body does not take."""

    def __repr__(self) -> str:
        return "<a fixture that is set up in the pytest process>"


@contextlib.contextmanager
def body_only(item: pytest.Item, inherits: bytes | None) -> Iterator[None]:
    """Let the protocol of a test run its body alone; the whole test if it inherits nothing.

    Args:
        item: The test.
        inherits: As in ``messages.Run``.

    """
    if inherits is None:
        yield
        return
    plugin = _BodyOnly(item.config, inherits)
    item.config.pluginmanager.register(plugin)
    try:
        yield
    finally:
        item.config.pluginmanager.unregister(plugin)


class _BodyOnly:
    """The plugin that runs a test's body in place of the whole test.

    Registered last, so it is asked first; the hooks around the protocol are there as ever.
    """

    def __init__(self, config: pytest.Config, inherits: bytes) -> None:
        self._inherits = inherits
        # the user's hooks for these phases run where the fixtures are
        self._hooks = OwnHooks(config.pluginmanager)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool:
        """Run the body, and say only what the parent cannot know."""
        ready = True
        if self._inherits:
            pytest_internals.begin_request(item)
            if not self._quietly(item, "setup", lambda: self._take(item)):
                return True
            set_up = self._hooks.pytest_runtest_setup
            ready = self._quietly(item, "setup", lambda: set_up(item=item))
        shows = None if self._inherits else item.stash.get(SHOWS_WARNINGS, None)
        if ready:
            # within pytest's own recording, which the child has begun after the fixture's
            with standard_library.warnings_shown_by(shows) if shows else contextlib.nullcontext():
                pytest_internals.run_phase(item, "call")
        self._quietly(
            item,
            "teardown",
            lambda: self._hooks.pytest_runtest_teardown(item=item, nextitem=None),
        )
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: Any) -> bool | None:
        """Run a coroutine of trio, after a fork, with a run of its own.

        The one that anyio has begun for the fixtures waits in a thread that was not forked.
        """
        backend = pyfuncitem.funcargs.get("anyio_backend")
        name = backend[0] if isinstance(backend, tuple) else backend
        test = pyfuncitem.obj
        if self._inherits or name != "trio" or not inspect.iscoroutinefunction(test):
            return None
        from pytest_cudafork.call.coroutines import run_trio

        takes = pytest_internals.arguments_of(pyfuncitem)
        run_trio(test, (), {one: pyfuncitem.funcargs[one] for one in takes})
        return True

    def _quietly(self, item: pytest.Item, phase: Any, work: Callable[[], object]) -> bool:
        """Do what belongs to a phase of the parent's; report it if it fails, or for its output."""
        before = len(sections_of(item))
        call: pytest.CallInfo[Any] = pytest.CallInfo.from_call(
            lambda: work() and None, when=phase, reraise=ENDS_SESSION
        )
        if call.excinfo is None and phase != "setup":
            if len(sections_of(item)) > before:
                report = pytest.TestReport.from_item_and_call(item, call)
                item.ihook.pytest_runtest_logreport(report=report)
            return True
        # pytest-rerunfailures, for one, prepares itself when the set-up is reported
        report = item.ihook.pytest_runtest_makereport(item=item, call=call)
        if call.excinfo is None:
            return True
        item.ihook.pytest_runtest_logreport(report=report)
        return False

    def _take(self, item: Any) -> None:
        """Take what was sent; then only the fixtures that belong to this process are set up."""
        sent = frames.loads(self._inherits)
        # a fork server was started before fixtures have changed it
        sys.path[:] = [*sent["path"], *(one for one in sys.path if one not in sent["path"])]
        item.funcargs.update(dict.fromkeys(sent["here"], _InTheParent()))
        for name, data in sent["values"].items():
            item.funcargs[name] = _loaded(data, f"the fixture {name!r}")
        for name, data in sent["self"].items():
            setattr(item.instance, name, _loaded(data, f"self.{name}"))
        for name, data in sent["class"].items():
            setattr(item.cls, name, _loaded(data, f"{item.cls.__name__}.{name}"))
        for when, key, text in sent["sections"]:
            item.add_report_section(when, key, text)
        for data in sent["marks"]:
            mark = _loaded(data, "a mark that a fixture has added")
            item.add_marker(getattr(pytest.mark, mark.name).with_args(*mark.args, **mark.kwargs))


def _loaded(data: bytes, name: str) -> Any:
    try:
        return pickle.loads(data)
    except Exception as error:  # unpickling runs the object's own code
        pytest.fail(
            f"{name} came to the process of this test but cannot be read here: "
            f"{type(error).__name__}: {error}. With method='fork' it is there as it is.",
            pytrace=False,
        )
