"""The pytest hooks, each a few lines that hand over to the part that does the work."""

from __future__ import annotations

import copy
import sys
from collections.abc import Generator

import pytest

from pytest_cudafork.compat.rewriting import leave_as_written

leave_as_written("pytest_cudafork")  # before it imports the rest of the package

from pytest_cudafork.check import session  # noqa: E402
from pytest_cudafork.check.session import SESSION  # noqa: E402
from pytest_cudafork.fixtures import (  # noqa: E402
    capture_pair,
    child_patch,
    cuda_state,
    cuda_uninitialized,
    graph_backend,
    phantom_cuda,
    run_forked,
    run_forkserver,
    run_script,
    run_spawned,
    start_method,
)
from pytest_cudafork.isolate.session import forked_option  # noqa: E402
from pytest_cudafork.isolate.session.hooks import IsolationHooks  # noqa: E402
from pytest_cudafork.settings import environment, markers, options  # noqa: E402

__all__ = [
    "capture_pair",
    "child_patch",
    "cuda_state",
    "cuda_uninitialized",
    "graph_backend",
    "phantom_cuda",
    "run_forked",
    "run_forkserver",
    "run_script",
    "run_spawned",
    "start_method",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the options."""
    options.add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Tell pytest which hooks of ours other plugins may have."""
    from pytest_cudafork.hooks import specs

    pluginmanager.add_hookspecs(specs)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> Generator[None, None, None]:
    """Begin the watch before the first conftest is imported."""
    _note_watchdogs(early_config)
    namespace = early_config.known_args_namespace
    if options.spell_out_flags(args):
        known = namespace
        namespace = parser.parse_known_args(args, namespace=copy.copy(early_config.option))
        # pytest has derived it from the ini file or the rootdir: no argument says it.
        namespace.confcutdir = known.confcutdir
        early_config.known_args_namespace = namespace
    session.begin(early_config, namespace)
    result = yield
    forked_option.offer_option(parser)  # all plugins are loaded by now, those of conftests too
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, isolation and, if the check is on, the hooks that it needs."""
    markers.register(config)
    # Loaded by a conftest, the plugin comes too late for the hook above.
    _note_watchdogs(config)
    state = session.begin(config, config.option)
    late = _take_message(config)
    if state.settings.marker_map is not None:
        config.stash[markers.MAP] = state.settings.marker_map
    isolate = forked_option.begin(config, state.settings.isolate)
    if _register_imports(config):
        isolate = None  # there is nothing to isolate
    _register_isolation(config, isolate)
    _register_health(config)
    _register_gpus(config)
    _choose_graphs(config)
    if state.settings.captures != "off":
        _register_captures(config)
    _register_check(config, state, late)
    _register_intent(config, state)
    _register_reports(config, state)
    _tell_of_variables(config, state)


def _tell_of_variables(config: pytest.Config, state: session.CudaForkSession) -> None:
    """Warn of variables with a slip in their names: once, in the session that a user has started.

    Raises:
        pytest.UsageError: warnings are errors.

    """
    inner = environment.value(environment.TEST) or hasattr(config, "workerinput")
    if inner or state.isolated or not environment.names_like_ours():
        return
    from pytest_cudafork.errors import CudaForkWarning
    from pytest_cudafork.settings.sources import in_vain

    try:
        for text in in_vain(options.OPTIONS):
            config.issue_config_time_warning(CudaForkWarning(text), stacklevel=2)
    except CudaForkWarning as error:
        raise pytest.UsageError(str(error)) from None


def _note_watchdogs(config: pytest.Config) -> None:
    from pytest_cudafork.process.forking import fault_watchdog

    end = fault_watchdog.note()
    if end is not None:
        config.add_cleanup(end)


def _register_reports(config: pytest.Config, state: session.CudaForkSession) -> None:
    """Register what tells other plugins and programs of the session: once, where it is reported."""
    if state.isolated or hasattr(config, "workerinput"):
        return
    from pytest_cudafork.report.announce import Announcer

    if getattr(config.option, "dist", "no") != "no":  # the tests that have the marker are elsewhere
        from pytest_cudafork.capture.in_tests.plugin import begin_summary

        begin_summary(config)
        from pytest_cudafork.hosts.receiving import TakesHome

        config.pluginmanager.register(TakesHome(config), "cudafork-takes-home")
    if sys.stdout is not None and sys.stdout.isatty():
        from pytest_cudafork.report.status_line import StatusLine

        config.pluginmanager.register(StatusLine(), "cudafork-status-line")
    announcer = Announcer(config, state.watch)
    config.pluginmanager.register(announcer, "cudafork-announcer")
    in_pytest_html = getattr(config.option, "htmlpath", None) is not None
    if state.settings.reports or in_pytest_html:
        from pytest_cudafork.report.outputs import Outputs

        outputs = Outputs(config, state, announcer)
        config.pluginmanager.register(outputs, "cudafork-outputs")
        late_errors = config.pluginmanager.get_plugin("cudafork-late-errors")
        if late_errors is not None:
            late_errors.then.append(outputs.close)
        if in_pytest_html:
            from pytest_cudafork.page.in_pytest_html import HtmlSection

            section = HtmlSection(outputs.document_so_far, state.settings.html)
            config.pluginmanager.register(section, "cudafork-pytest-html")
    if state.watch is not None and getattr(config.option, "xmlpath", None):
        from pytest_cudafork.report.junit import JunitProperties

        config.pluginmanager.register(JunitProperties(config, state), "cudafork-junit")


def _register_intent(config: pytest.Config, state: session.CudaForkSession) -> None:
    """Register what counts tests that do not run as meant, if the session says what is meant."""
    asked = state.settings.expect_gpus is not None or state.settings.intent
    if asked and not state.isolated:
        from pytest_cudafork.intent.hooks import IntentHooks

        config.pluginmanager.register(IntentHooks(config), "cudafork-intent")


def _register_health(config: pytest.Config) -> None:
    from pytest_cudafork.health import plugin as health

    health.begin(config)


def _register_isolation(config: pytest.Config, isolate: str | None) -> None:
    from pytest_cudafork.isolate.session.in_place import InPlace

    if not config.stash[SESSION].isolated:
        from pytest_cudafork.isolate.session.asking import AskPlugins

        config.pluginmanager.register(AskPlugins(config), "cudafork-ask-plugins")
    isolation = IsolationHooks(config, isolate)
    config.pluginmanager.register(isolation, "cudafork-isolation")
    config.pluginmanager.register(InPlace(isolation.runs_here), "cudafork-in-place")


def _take_message(config: pytest.Config) -> str:
    if not hasattr(config, "workerinput"):
        return ""
    from pytest_cudafork.hosts.told import take_message

    return take_message(config)


def _register_check(config: pytest.Config, state: session.CudaForkSession, late: str) -> None:
    """Register what looks for errors, if the check is on."""
    if state.watch is None:
        return
    from pytest_cudafork.check.baseline_hooks import BaselineHooks, PassedPlaces
    from pytest_cudafork.check.hooks import CheckHooks, LateErrors

    watch = state.watch
    check = CheckHooks(state, watch.observer, watch.refusals, watch.acceptance)
    baseline = BaselineHooks(config, state, watch, check)
    if state.settings.baseline:
        config.pluginmanager.register(PassedPlaces(watch), "cudafork-passed-places")
    config.pluginmanager.register(baseline, "cudafork-baseline")
    config.pluginmanager.register(check, "cudafork-check")
    late_errors = LateErrors(check)
    late_errors.then.append(baseline.close)
    config.pluginmanager.register(late_errors, "cudafork-late-errors")
    config.add_cleanup(late_errors.close)
    if state.reports_home:
        from pytest_cudafork.hosts.sending import SendsHome

        config.pluginmanager.register(SendsHome(config, watch, check, late), "cudafork-sends-home")


def _register_gpus(config: pytest.Config) -> None:
    from pytest_cudafork.gpus.lease import GpuLeases, RefusedTests

    leases = GpuLeases(config, config.stash[SESSION].settings.gpus)
    config.pluginmanager.register(leases, "cudafork-gpus")
    settings = config.stash[SESSION].settings
    if settings.profile or settings.pack:
        from pytest_cudafork.gpus import costs

        costs.begin(config, leases.lender)
    config.pluginmanager.register(RefusedTests(), "cudafork-gpus-refused")


def _choose_graphs(config: pytest.Config) -> None:
    if config.stash[SESSION].settings.graphs is not None:
        from pytest_cudafork.capture.marker import choose_for_session

        choose_for_session(config)


def _register_captures(config: pytest.Config) -> None:
    from pytest_cudafork.capture.in_tests import plugin as captures

    captures.begin(config)
    if config.stash[SESSION].settings.captures == "audit":
        from pytest_cudafork.capture.rerun import hooks as audit

        audit.begin(config)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test once with each graph backend, or each start method, that its markers name."""
    names = {mark.name for mark in metafunc.definition.iter_markers()}
    if "graph_capture" in names:
        from pytest_cudafork.capture.marker import parametrize

        parametrize(metafunc)
    if "start_methods" in names:
        from pytest_cudafork.isolate import start_methods

        start_methods.parametrize(metafunc)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Have a test use the backend or start method it was made for, though it asks for none.

    A marker may have its captures looked at.
    """
    if markers.says_of_captures(item):
        _register_captures(item.config)
    call = getattr(item, "callspec", None)
    for name in ("graph_backend", "start_method"):
        if call is not None and name in call.params:
            names: list[str] = getattr(item, "fixturenames", [])
            if name not in names:  # pytest has taken it out again
                names.append(name)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Let tests of plugins, which forget what they have imported, keep what belongs together."""
    if session.config.pluginmanager.has_plugin("pytester"):
        from pytest_cudafork.compat.pytest_internals import keep_in_snapshots

        session.config.add_cleanup(keep_in_snapshots("pytest_cudafork", "cloudpickle"))


def pytest_report_collectionfinish(
    config: pytest.Config, items: list[pytest.Item]
) -> list[str] | None:
    """Say how graphs are captured, if a test does."""
    if not any("graph_backend" in getattr(item, "fixturenames", ()) for item in items):
        return None
    from pytest_cudafork.report.header import graph_line

    return [graph_line(config.stash[SESSION].settings, items)]


def _register_imports(config: pytest.Config) -> bool:
    """Register the import audit if it is asked for; return whether nothing else will run."""
    state = config.stash[SESSION]
    if not state.settings.imports.packages or state.isolated:
        return False
    from pytest_cudafork.imports.plugin import ImportAudit

    audit = ImportAudit(config)
    if audit.is_wanted:
        config.pluginmanager.register(audit, "cudafork-imports")
    return audit.alone


def pytest_report_header(config: pytest.Config) -> list[str] | None:
    """Show what is checked and with which eyes; with ``-v`` also where each option was set."""
    state = config.stash[SESSION]
    lines: list[str] = []
    if state.watch is not None:
        from pytest_cudafork.report.header import header

        lines += header(state.settings, state.watch.observer)
    lines += forked_option.header(config)
    if config.option.verbose > 0:
        from pytest_cudafork.settings.sources import source_lines

        lines += source_lines(config, options.OPTIONS)
    return lines or None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail a test whose markers are wrong."""
    complaint = markers.marks_of(item).complaint
    if complaint:
        path, line, _ = item.location
        pytest.fail(f"{path}:{(line or 0) + 1}: {item.name}: {complaint}", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let a report carry what checks of graphs have to say, and its process if a trace is drawn."""
    report = yield
    remarks = sys.modules.get("pytest_cudafork.capture.story.remarks")
    if remarks is not None:
        report.user_properties.extend((remarks.PROPERTY, text) for text in remarks.take())
    verdicts = sys.modules.get("pytest_cudafork.capture.story.verdicts")
    if verdicts is not None and (found := verdicts.take_verdicts()):
        from pytest_cudafork.capture.interface.check_names import CARRIED

        setattr(report, CARRIED, found)
    if item.config.stash[SESSION].settings.tells_times:
        from pytest_cudafork.report import trace

        gpus = environment.value(environment.VISIBLE_GPUS) if markers.marks_of(item).gpus else ""
        setattr(report, trace.CARRIED, trace.carried(gpus))
    return report


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Tell what was seen."""
    passed = terminalreporter.stats.get("passed", [])
    if any(getattr(report, "user_properties", ()) for report in passed):
        from pytest_cudafork.report.graphs import remark_lines

        for line in remark_lines(passed, verbose=config.option.verbose > 0):
            terminalreporter.write_line(line)
    _write_start_methods(terminalreporter, config)
    state = config.stash[SESSION]
    check = config.pluginmanager.get_plugin("cudafork-check")
    if state.watch is not None and check is not None:
        from pytest_cudafork.report.baseline import write_baseline
        from pytest_cudafork.report.terminal import write_summary

        write_summary(terminalreporter, state.settings, state.watch.observer, check)
        baseline = config.pluginmanager.get_plugin("cudafork-baseline")
        if state.settings.baseline and baseline is not None:
            write_baseline(terminalreporter, state.settings, str(config.rootpath), baseline)


def _write_start_methods(terminal: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Count the tests that named one start method and ran under another."""
    reports = [each for group in terminal.stats.values() for each in group]
    tests = [each for each in reports if isinstance(each, pytest.TestReport)]
    telling = [report for report in tests if report.user_properties]
    if telling:
        from pytest_cudafork.report.start_methods import start_method_lines

        for line in start_method_lines(telling, verbose=config.option.verbose > 0):
            terminal.write_line(line, yellow=True)
