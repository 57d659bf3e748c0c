"""The pytest hooks, each a few lines that hand over to the part that does the work."""

from __future__ import annotations

import copy
import sys
from collections.abc import Generator

import pytest

from pytest_cudafork.check import session
from pytest_cudafork.check.session import SESSION
from pytest_cudafork.fixtures import (
    capture_pair,
    cuda_state,
    cuda_uninitialized,
    graph_backend,
    phantom_cuda,
    run_forked,
    run_forkserver,
    run_spawned,
)
from pytest_cudafork.isolate.session import forked_option
from pytest_cudafork.isolate.session.hooks import IsolationHooks
from pytest_cudafork.settings import markers, options

__all__ = [
    "capture_pair",
    "cuda_state",
    "cuda_uninitialized",
    "graph_backend",
    "phantom_cuda",
    "run_forked",
    "run_forkserver",
    "run_spawned",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the options."""
    options.add_options(parser)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> Generator[None, None, None]:
    """Begin the watch before the first conftest is imported."""
    namespace = early_config.known_args_namespace
    if options.spell_out_flags(args):
        namespace = parser.parse_known_args(args, namespace=copy.copy(early_config.option))
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
    state = session.begin(config, config.option)
    isolate = forked_option.begin(config, state.settings.isolate)
    if _register_imports(config):
        isolate = None  # there is nothing to isolate
    config.pluginmanager.register(IsolationHooks(config, isolate), "cudafork-isolation")
    _register_health(config)
    _register_gpus(config)
    _choose_graphs(config)
    _register_check(config, state)


def _register_check(config: pytest.Config, state: session.CudaForkSession) -> None:
    """Register what looks for errors, if the check is on."""
    if state.watch is None:
        return
    from pytest_cudafork.check.hooks import CheckHooks

    check = CheckHooks(state, state.watch.observer, state.watch.refusals)
    config.pluginmanager.register(check, "cudafork-check")


def _register_gpus(config: pytest.Config) -> None:
    from pytest_cudafork.gpus.lease import GpuLeases, RefusedTests

    leases = GpuLeases(config, config.stash[SESSION].settings.gpus)
    config.pluginmanager.register(leases, "cudafork-gpus")
    config.pluginmanager.register(RefusedTests(), "cudafork-gpus-refused")


def _register_health(config: pytest.Config) -> None:
    from pytest_cudafork.health import plugin

    plugin.begin(config)


def _choose_graphs(config: pytest.Config) -> None:
    if config.stash[SESSION].settings.graphs is not None:
        from pytest_cudafork.capture.marker import choose_for_session

        choose_for_session(config)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test marked ``graph_capture`` once with each backend."""
    if metafunc.definition.get_closest_marker("graph_capture") is not None:
        from pytest_cudafork.capture.marker import parametrize

        parametrize(metafunc)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Have a test use the backend that it was made for, though it asks for no fixture."""
    call = getattr(item, "callspec", None)
    if call is not None and "graph_backend" in call.params:
        names: list[str] = getattr(item, "fixturenames", [])
        if "graph_backend" not in names:  # pytest has taken it out again
            names.append("graph_backend")


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
    """Show what is checked and with which eyes."""
    state = config.stash[SESSION]
    if state.watch is None:
        return None
    from pytest_cudafork.report.header import header

    return header(state.settings, state.watch.observer)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail a test whose markers are wrong."""
    complaint = markers.marks_of(item).complaint
    if complaint:
        path, line, _ = item.location
        pytest.fail(f"{path}:{(line or 0) + 1}: {item.name}: {complaint}", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let a report carry what checks of graphs have to say of a test that passed."""
    report = yield
    remarks = sys.modules.get("pytest_cudafork.capture.remarks")
    if remarks is not None:
        report.user_properties.extend((remarks.PROPERTY, text) for text in remarks.take())
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
    state = config.stash[SESSION]
    check = config.pluginmanager.get_plugin("cudafork-check")
    if state.watch is not None and check is not None:
        from pytest_cudafork.report.terminal import write_summary

        write_summary(terminalreporter, state.settings, state.watch.observer, check)
