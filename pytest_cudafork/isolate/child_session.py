"""Owns how one whole test runs in a child: its reports, warnings and output go to the parent.

Runs in the child, imports nothing of the parent side, and does not know how the parent shows what
it is told. A forked child has the parent's session; any other child makes a session of its own with
the parent's options, as a worker of pytest-xdist does, and collects the one test.
"""

from __future__ import annotations

import contextlib
import os
import traceback
import warnings
from collections.abc import Mapping
from typing import Any, NoReturn

import pytest

from pytest_cudafork.isolate import blackbox, child, child_call, wire

_QUIET_OPTIONS: Mapping[str, Any] = {
    # one process, no debugger
    "numprocesses": None,
    "maxprocesses": None,
    "dist": "no",
    "distload": False,
    "tx": [],
    "px": [],
    "looponfail": False,
    "usepdb": False,
    "trace": False,
    # which tests run is settled
    "lf": False,
    "failedfirst": False,
    "newfirst": False,
    "stepwise": False,
    "stepwise_skip": False,
    "cacheclear": False,
    "collectonly": False,
    # files that the parent writes
    "xmlpath": None,
    "report_log": None,
    "htmlpath": None,
    "json_report": False,
    "pastebin": None,
    "debug": None,
}
"""Options of pytest and known plugins which must differ in the child; those absent stay absent."""

_NO_REWRITE_WARNING = (
    "ignore:Module already imported so cannot be rewritten:pytest.PytestAssertRewriteWarning"
)
_CACHE_WRITERS = ("lfplugin", "nfplugin", "stepwiseplugin")


class Reporter:
    """The plugin that stands in the child for everything that reports in a parent."""

    def __init__(self, config: pytest.Config, channel: child.Channel) -> None:
        self._config = config
        self._channel = channel
        self.caught: list[warnings.WarningMessage] = []

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Send a report as it comes, the warnings before it first."""
        self._channel.leave_if_not_mine()
        self.send_caught()
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._channel.send("report", data=wire.plain(data))

    def send_caught(self) -> None:
        """Send the warnings recorded so far in a forked child."""
        while self.caught:
            self._channel.send("warning", **child_call.pack_warning(self.caught.pop(0)))

    def run(self, item: pytest.Item, run: Any) -> None:
        """Run the test by ``run()`` and tell how the run ended, beyond its reports."""
        blackbox.share_capture(item.config, self._channel)
        try:
            run()
        except pytest.exit.Exception as stop:
            self._channel.send("stop", reason=str(stop.msg), returncode=stop.returncode)
            raise
        except KeyboardInterrupt:
            self._channel.send("interrupt")
            raise


def run_forked(item: pytest.Item, channel: child.Channel, stacks_fd: int) -> NoReturn:
    """Run the test in this freshly forked process and end it; never returns into the parent's code.

    What was set up before the fork stays set up; only what the test sets up here is torn down here.
    """
    from _pytest.runner import runtestprotocol

    status = child.EXIT_LOST
    try:
        child.forget_parent_exit_work()
        child.prepare(stacks_fd)
        _disown_fixtures(item)
        reporter = Reporter(item.config, channel)
        _only_to(reporter, item)
        with warnings.catch_warnings(record=True) as reporter.caught:
            with contextlib.suppress(pytest.exit.Exception, KeyboardInterrupt):
                reporter.run(item, lambda: runtestprotocol(item, log=True, nextitem=None))
            # after pytest.exit no teardown has run yet
            item.session._setupstate.teardown_exact(None)
            reporter.send_caught()
        _send_done(channel, item.session)
        status = 0
    except BaseException as error:
        channel.leave_if_not_mine()
        with contextlib.suppress(OSError):
            channel.send("internal", text=_text(error))
    finally:
        channel.leave_if_not_mine()
        child.leave(status)


def _disown_fixtures(item: pytest.Item) -> None:
    """Forget the finalizers of everything that was set up before the fork.

    Those of the nodes run at the end of a scope. Those of the fixtures themselves would run when
    this test asks a parametrized fixture of a wider scope for its next parameter.
    """
    from _pytest.fixtures import FixtureDef  # public from pytest 8 on

    session: Any = item.session
    definitions: list[Any] = []
    for finalizers, _ in session._setupstate.stack.values():
        definitions += [getattr(getattr(one, "func", None), "__self__", None) for one in finalizers]
        finalizers.clear()
    # pytest 7 hides the definition in a lambda, but lists all of them here
    for known in getattr(session._fixturemanager, "_arg2fixturedefs", {}).values():
        definitions += known
    info = getattr(item, "_fixtureinfo", None)
    for known in info.name2fixturedefs.values() if info is not None else ():
        definitions += known
    for definition in definitions:
        if isinstance(definition, FixtureDef):
            definition._finalizers.clear()


def _only_to(reporter: Reporter, item: pytest.Item) -> None:
    """Let reports made in this process reach the session's counters and ``reporter`` only.

    The other receivers (terminal, JUnit file, xdist's connection) are the parent's; they hear of
    the reports there. pluggy has no public way to leave plugins out of one hook in place.
    """
    pluginmanager: Any = item.config.pluginmanager
    pluginmanager.register(reporter)
    keep = (item.session, reporter)
    call = pluginmanager._inner_hookexec

    def call_ours(hook_name: str, methods: Any, *rest: Any) -> Any:
        if hook_name == "pytest_runtest_logreport":
            methods = [one for one in methods if any(one.plugin is mine for mine in keep)]
        return call(hook_name, methods, *rest)

    pluginmanager._inner_hookexec = call_ours


def run_session(channel: child.Channel, request: dict[str, Any], stacks_fd: int) -> int:
    """Make a session as the parent's, run the one test, and return the exit status."""
    os.environ[child.ISOLATED_ENV] = "1"
    cwd = os.open(".", os.O_RDONLY | os.O_CLOEXEC)
    only = None
    try:
        os.chdir(request["invocation_dir"])
        config = _make_config(request)
        only = OnlyOne(config, channel, request, stacks_fd, cwd)
        config.pluginmanager.register(only, "cudafork-only-one")
        config.hook.pytest_cmdline_main(config=config)
    except BaseException as error:
        channel.leave_if_not_mine()
        if only is not None and isinstance(error, pytest.UsageError):
            only.send_missing()  # pytest says "not found" so; why, the collection has told
        else:
            channel.send("internal", text=_text(error))
        return 0
    _send_done(channel, only.session)
    child.arm_stacks(stacks_fd)  # pytest has disarmed them at the end of its session
    return 0


def _make_config(request: dict[str, Any]) -> pytest.Config:
    """Return a configuration with the parent's options, root directory and ini file."""
    import pickle

    options: dict[str, Any] = {}
    for name, pickled in request["options"].items():
        with contextlib.suppress(Exception):  # a type of a conftest that is not loaded yet
            options[name] = pickle.loads(pickled)
    plugins = options.get("plugins") or []
    options["plugins"] = []
    args = [part for name in plugins for part in ("-p", name)]
    args += ["-p", "no:terminal", *request["args"]]
    options.update((name, value) for name, value in _QUIET_OPTIONS.items() if name in options)
    # this package was imported before pytest could rewrite its asserts, of which it needs none;
    # with -W error the warning of that would end the session
    options["pythonwarnings"] = [*(options.get("pythonwarnings") or []), _NO_REWRITE_WARNING]
    config = pytest.Config.fromdictargs(options, args)
    config.args = [request["target"]]
    if request["workerinput"] is not None:
        config.workerinput = request["workerinput"]  # type: ignore[attr-defined]
        config.workeroutput = {}  # type: ignore[attr-defined]
    return config


class OnlyOne(Reporter):
    """The plugin that makes a session run exactly the test that was asked for."""

    def __init__(
        self,
        config: pytest.Config,
        channel: child.Channel,
        request: dict[str, Any],
        stacks_fd: int,
        cwd: int,
    ) -> None:
        super().__init__(config, channel)
        self._request = request
        self._stacks_fd = stacks_fd
        self._cwd = cwd
        self._found: list[str] = []
        self._errors: list[str] = []
        self._item: pytest.Item | None = None
        self.session: pytest.Session | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Use the parent's temporary directory, leave its cache alone, and arm the stacks."""
        self.session = session
        manager = self._config.pluginmanager
        for name in _CACHE_WRITERS:
            plugin = manager.get_plugin(name)
            if plugin is not None:
                manager.unregister(plugin)
        factory = getattr(self._config, "_tmp_path_factory", None)
        if factory is not None and self._request["basetemp"]:
            from pathlib import Path

            # "given" keeps the end of this session from removing the directory
            factory._basetemp = factory._given_basetemp = Path(self._request["basetemp"])
        child.arm_stacks(self._stacks_fd)  # pytest has armed them for its own stderr

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, when: str) -> None:
        """Send a warning of the test; those of collection the parent has seen itself.

        Not for a forked child: pytest tells every new plugin all the warnings there ever were.
        """
        if when == "runtest":
            self._channel.send("warning", **child_call.pack_warning(warning_message))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep what went wrong in collection, for the message if the test is not found."""
        if report.failed:
            self._errors.append(report.longreprtext)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Any:
        """Keep the one test, whatever the other plugins select."""
        wanted = tuple(self._request["identity"])
        chosen = next((item for item in items if blackbox.identity(item) == wanted), None)
        self._found = [item.nodeid for item in items]
        self._item = chosen
        result = yield
        items[:] = [] if chosen is None else [chosen]
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the one test, or say that it is not here."""
        os.fchdir(self._cwd)
        os.close(self._cwd)
        item = self._item
        if item is None:
            self.send_missing()
            return True
        hook = item.config.hook
        self.run(item, lambda: hook.pytest_runtest_protocol(item=item, nextitem=None))
        return True

    def send_missing(self) -> None:
        """Tell the parent that the test is not here, and what is."""
        self._channel.send("missing", found=self._found, errors=self._errors)

    def pytest_internalerror(self, excrepr: object) -> None:
        """Tell the parent of an error in pytest or a plugin."""
        self._channel.send("internal", text=str(excrepr))


def _send_done(channel: child.Channel, session: pytest.Session | None) -> None:
    stop = getattr(session, "shouldstop", False)
    fail = getattr(session, "shouldfail", False)
    channel.send("done", shouldstop=wire.plain(stop), shouldfail=wire.plain(fail))


def _text(error: BaseException) -> str:
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))
