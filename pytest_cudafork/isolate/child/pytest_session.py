"""The session of a child: its own, made as the parent's, or the parent's after a fork."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pytest_cudafork.compat import pytest_internals, pytest_reports
from pytest_cudafork.compat.unpatched import gc, os, tempfile
from pytest_cudafork.isolate import coverage_data, item_names, live_text
from pytest_cudafork.isolate.child import cov_plugin, items, pytest_config, rehearsal
from pytest_cudafork.isolate.child.reporter import Reporter
from pytest_cudafork.process import child
from pytest_cudafork.process.channel import EXIT_LOST, Channel
from pytest_cudafork.process.forking.short_stack import Turn
from pytest_cudafork.process.protocol import messages
from pytest_cudafork.settings import environment

_REHEARSALS = 1
"""Enough to copy the pages that a test writes to; a second one costs more than it saves."""
_CACHE_WRITERS = ("lfplugin", "nfplugin", "stepwiseplugin")
_ORDERING = ("orderingplugin",)
"""pytest-order, which would miss, aloud, the tests that are not collected here."""


class NoTemporaryFile(Exception):
    """There is no room for the files that pytest begins with."""


class WorkSession:
    """The plugin that makes a session collect as the parent's and keep all tests that it finds.

    ``work`` is called in place of pytest's loop over the tests.
    """

    def __init__(self, request: dict[str, Any], cwd: int) -> None:
        self._request = request
        self._cwd = cwd
        self.items: list[pytest.Item] = []
        self.errors: list[str] = []
        self.coverage = coverage_data.begin(request["coverage"])

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Let plugins find what they look for in a session that shows and measures."""
        if self._request["terminal"] is not None:
            live_text.stand_in(config, self._request["terminal"])
        if self._request["pytest_cov"]:
            cov_plugin.stand_in(config)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Use the parent's temporary directory; leave its cache, JUnit file and order alone."""
        manager = session.config.pluginmanager
        parents = [manager.get_plugin(name) for name in (*_CACHE_WRITERS, *_ORDERING)]
        for plugin in (*parents, pytest_reports.junit_xml(session.config)):
            if plugin is not None and manager.is_registered(plugin):
                manager.unregister(plugin)
        pytest_config.append_log(session.config, self._request["log_file"])
        if self._request["basetemp"]:
            from pathlib import Path

            pytest_internals.use_basetemp(session.config, Path(self._request["basetemp"]))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep what went wrong in collection, for the message if a test is not found."""
        if report.failed:
            self.errors.append(report.longreprtext)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Any:
        """Keep every test, whatever the other plugins select; the parent has selected."""
        self.items = list(items)
        item_names.number_namesakes(items)
        result = yield
        items[:] = self.items
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Work for the parent."""
        os.fchdir(self._cwd)
        os.close(self._cwd)
        session.config.args = list(self._request["args"])
        try:
            self.work(session)
        finally:
            pytest_reports.forget_junit_xml(session.config)
            pytest_internals.leave_basetemp(session.config)
        return True

    def work(self, session: pytest.Session) -> None:
        """Do what this process was made for."""
        raise NotImplementedError

    def item_server(self, session: pytest.Session) -> items.ItemServer:
        """Return what runs the tests that were found, and makes messages of their reports."""
        reporter = Reporter(session.config)
        session.config.pluginmanager.register(reporter)
        reporter.take_over(session)
        return items.ItemServer(reporter, self.items, self.errors)


class OneProcess(WorkSession):
    """The session of a fresh interpreter: it runs the tests it is asked for itself."""

    def __init__(self, request: dict[str, Any], cwd: int, channel: Channel, stacks_fd: int) -> None:
        super().__init__(request, cwd)
        self._channel = channel
        self._stacks_fd = stacks_fd

    def work(self, session: pytest.Session) -> None:
        """Run tests."""
        gc.freeze()  # what was imported stays; no collection needs to look at it
        gc.enable()
        child.arm_stacks(self._stacks_fd)  # pytest has armed them for its own stderr
        server = self.item_server(session)
        server.coverage = self.coverage
        server.serve(self._channel)

    def pytest_internalerror(self, excrepr: object) -> None:
        """Tell the parent of an error in pytest or a plugin."""
        self._channel.send(messages.InternalError(str(excrepr)))


def run_session(task: child.Task) -> int:
    """Make a session as the parent's and run the tests it asks for, in a fresh interpreter."""
    worker: OneProcess | None = None
    channel = task.the_channel()

    def plugin(cwd: int) -> OneProcess:
        nonlocal worker
        worker = OneProcess(task.data, cwd, channel, task.stacks_fd)
        return worker

    try:
        run_pytest(task.data, plugin)
    except BaseException as error:
        channel.leave_if_not_mine()
        if worker is not None and isinstance(error, pytest.UsageError):
            # pytest says "not found" so; why, the collection has told
            channel.send(messages.TestMissing([], worker.errors))
        else:
            known = isinstance(error, NoTemporaryFile)
            channel.send(messages.InternalError(str(error) if known else child.text_of(error)))
        channel.send(messages.TestOver(last=True))
    child.arm_stacks(task.stacks_fd)  # pytest has disarmed them at the end of its session
    return 0


def run_pytest(request: dict[str, Any], plugin: Callable[[int], WorkSession]) -> None:
    """Run pytest with the parent's options and the plugin, which gets the working directory.

    Raises:
        pytest.UsageError: Something of what is to be collected does not exist here.
        NoTemporaryFile: pytest cannot begin.

    """
    environment.put(environment.ISOLATED, "1")
    cwd = os.open(".", os.O_RDONLY | os.O_CLOEXEC)
    os.chdir(request["invocation_dir"])
    _have_temporary_folder(request["temporary"])
    try:
        config = pytest_config.make_config(request)
    except OSError:
        _try_temporary_file()
        raise
    config.pluginmanager.register(plugin(cwd), "cudafork-work")
    config.hook.pytest_cmdline_main(config=config)


def _have_temporary_folder(given: str | None) -> None:
    """Use the parent's folder for temporary files where none that is looked for here takes any.

    pytest makes such files for what tests write, and cannot begin without. On a full disk it can:
    they are empty, and stay so where a test writes nothing.
    """
    state: Any = sys.modules["tempfile"]
    before = state.tempdir
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        state.tempdir = given
    else:
        state.tempdir = before  # a test may still name another, by TMPDIR


def _try_temporary_file() -> None:
    """Find out whether it is for want of temporary files that pytest could not begin.

    Raises:
        NoTemporaryFile: It is.

    """
    try:
        tempfile.TemporaryFile().close()
    except OSError as error:
        raise NoTemporaryFile(
            f"no temporary file can be made: {error}. Make room there, or let TMPDIR name a folder "
            "that has some"
        ) from None


def run_forked(
    item: pytest.Item,
    env: dict[str, str],
    reporter: Reporter,
    channel: Channel,
    stacks_fd: int,
    *,
    practice: bool = False,
) -> Iterator[Turn]:
    """Run tests in this freshly forked process and end it; there is nothing after the last turn.

    ``env`` is added to the environment. ``practice`` uses the time until the first test's turn.
    What was set up before the fork stays set up; only what the tests set up here is torn down here.
    """
    status = EXIT_LOST
    try:
        child.forget_parent_exit_work()
        child.prepare(stacks_fd)
        if env:
            os.environ.update(env)
        pytest_internals.forget_finalizers(item)
        reporter.take_over(item.session)
        finder = item_names.Finder(item.session.items, item)
        server = items.ItemServer(reporter, item.session.items, finder=finder)
        if practice:
            rehearsal.Rehearsal(item.session).run(_REHEARSALS)
        server.environment = child.environment({})
        server.coverage = coverage_data.begin()
        yield from server.turns(channel)
        status = 0
    except BaseException as error:
        channel.leave_if_not_mine()
        items.tell_failure(channel, error)
    finally:
        channel.leave_if_not_mine()
        child.leave(status, channel)
