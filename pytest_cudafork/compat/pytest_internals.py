"""What the plugin uses of pytest that has no public name.

An isolated test is reported, captured and torn down across two processes, for which pytest has no
interface: its capture, the stack of what is set up, the writer of its terminal. Each function says
what it takes from there and why. What reports need is in ``pytest_reports.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
from _pytest._code.code import TerminalRepr as TerminalRepr  # the base class of representations

if TYPE_CHECKING:
    from _pytest._io import TerminalWriter

# -- running a test ------------------------------------------------------------------------------


def run_test_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Set up, call and tear down a test, and report each: ``_pytest.runner.runtestprotocol``.

    For a hook ``pytest_runtest_protocol`` that has something to do before.
    """
    from _pytest.runner import runtestprotocol

    runtestprotocol(item, nextitem=nextitem)


def run_phase(item: pytest.Item, phase: str, **arguments: Any) -> pytest.TestReport:
    """Run one phase of a test and report it: ``_pytest.runner.call_and_report``."""
    from _pytest.runner import call_and_report

    phase_: Any = phase
    return call_and_report(item, phase_, **arguments)


def begin_request(item: Any) -> None:
    """Make a test ready to be set up (once more): ``_request`` and ``_initrequest``."""
    if not item._request:
        item._initrequest()


def end_request(item: Any) -> None:
    """Let go of a test's fixtures when it is over: ``_request``, as pytest's own protocol does."""
    item._request = False
    item.funcargs = None


def show_setup(item: pytest.Item) -> None:
    """Write the line of ``--setup-show`` for a test: ``_pytest.runner.show_test_item``.

    Newer releases ask whether a result will follow on the line.
    """
    import inspect

    from _pytest.runner import show_test_item

    show: Any = show_test_item
    follows = not getattr(item.config.option, "setuponly", False)
    asked = "add_space" in inspect.signature(show).parameters
    show(item, **({"add_space": follows} if asked else {}))


def arguments_of(item: Any) -> tuple[str, ...]:
    """Return the names of the fixtures that a test function takes (``_fixtureinfo.argnames``)."""
    names: tuple[str, ...] = item._fixtureinfo.argnames
    return names


def home_of_fixture(item: Any, name: str) -> str:
    """Return the module whose function makes a fixture of a test; "" for a plain parameter.

    ``_fixtureinfo.name2fixturedefs``.
    """
    known = item._fixtureinfo.name2fixturedefs.get(name)
    if not known:
        return ""
    function = getattr(known[-1].func, "__func__", known[-1].func)
    return str(getattr(function, "__module__", ""))


def is_anything_set_up(session: Any) -> bool:
    """Whether there are nodes or fixtures to tear down (``session._setupstate.stack``)."""
    return bool(session._setupstate.stack)


def tear_down(session: Any, nextitem: pytest.Item | None) -> None:
    """Tear down what ``nextitem`` does not need; all of it for None.

    ``session._setupstate.teardown_exact``. Raises what the teardown raises.
    """
    session._setupstate.teardown_exact(nextitem)


def teardown_captured(item: pytest.Item) -> AbstractContextManager[None]:
    """Let what is written meanwhile become the section of a test's teardown.

    ``CaptureManager.item_capture``. Until pytest 8 an error inside loses the section.
    """
    manager: Any = item.config.pluginmanager.get_plugin("capturemanager")
    if manager is None:
        return nullcontext()
    captured: AbstractContextManager[None] = manager.item_capture("teardown", item)
    return captured


_FORGOTTEN = pytest.StashKey[list[Any]]()
"""The finalizers that are another process's to run."""


def forget_finalizers(item: pytest.Item) -> None:
    """Let this process tear down nothing of what is set up now: its parent will.

    The finalizers of the nodes (``session._setupstate.stack``) run at the end of a scope; those of
    the fixtures (``FixtureDef._finalizers``) would run when this test asks a parametrized fixture
    of a wider scope for its next parameter. They are kept, not freed: a fixture that yields is a
    generator, and with its last reference its ``finally`` would run here.
    """
    from _pytest.fixtures import FixtureDef  # public from pytest 8 on

    session: Any = item.session
    kept = item.config.stash.setdefault(_FORGOTTEN, [])
    definitions: list[Any] = []
    for finalizers, _ in session._setupstate.stack.values():
        definitions += [getattr(getattr(one, "func", None), "__self__", None) for one in finalizers]
        kept.extend(finalizers)
        finalizers.clear()
    if pytest.version_tuple < (8,):  # it hides the definition in a lambda, but lists all of them
        for known in session._fixturemanager._arg2fixturedefs.values():
            definitions += known
    info = getattr(item, "_fixtureinfo", None)
    for known in info.name2fixturedefs.values() if info is not None else ():
        definitions += known
    for definition in definitions:
        if isinstance(definition, FixtureDef):
            kept.extend(definition._finalizers)
            definition._finalizers.clear()


def is_fixture(thing: object) -> bool:
    """Whether something is what ``@pytest.fixture`` returns.

    ``FixtureFunctionDefinition`` from pytest 8.4 on; before that a function with an attribute.
    """
    name = type(thing).__name__
    return name == "FixtureFunctionDefinition" or hasattr(thing, "_pytestfixturefunction")


def no_fixtures() -> Any:
    """Return what tells a ``pytest.Function`` that it asks for no fixture, autouse ones included.

    ``_pytest.fixtures.FuncFixtureInfo``, the argument ``fixtureinfo`` of ``Function.from_parent``.
    """
    from _pytest.fixtures import FuncFixtureInfo

    return FuncFixtureInfo(argnames=(), initialnames=(), names_closure=[], name2fixturedefs={})


def is_skipped(item: pytest.Item) -> bool:
    """Whether a mark skips a test: ``_pytest.skipping.evaluate_skip_marks``.

    Raises:
        Exception: The mark is wrong; pytest's own ``fail`` among others.

    """
    from _pytest.skipping import evaluate_skip_marks

    return evaluate_skip_marks(item) is not None


def xfail_mark(item: pytest.Item) -> Any:
    """Return the xfail mark in force, with ``raises`` and ``reason``, or None.

    ``_pytest.skipping.evaluate_xfail_marks``.

    Raises:
        Exception: The mark is wrong; pytest's own ``fail`` among others.

    """
    from _pytest.skipping import evaluate_xfail_marks

    return evaluate_xfail_marks(item)


def catch_warnings(item: pytest.Item) -> AbstractContextManager[None]:
    """Let warnings count for a test: its filters, and the summary under its name.

    ``_pytest.warnings.catch_warnings_for_item``.
    """
    from _pytest.warnings import catch_warnings_for_item

    return catch_warnings_for_item(config=item.config, ihook=item.ihook, when="runtest", item=item)


def outcomes_of_unittest(item: pytest.Item) -> list[BaseException]:
    """Return how a ``unittest`` test has failed or was skipped; nothing for other tests.

    ``TestCaseFunction._excinfo``: unittest catches what its tests raise, and pytest reports this
    afterwards, in the place of what a hook around the test has raised.
    """
    return [each.value for each in getattr(item, "_excinfo", None) or ()]


def forget_outcomes_of_unittest(item: pytest.Item) -> None:
    """Let what a hook raises be reported instead."""
    if getattr(item, "_excinfo", None):
        item._excinfo = []  # type: ignore[attr-defined]


def collection_error(report: pytest.CollectReport) -> BaseException | None:
    """Return the exception with which a collection failed.

    ``report.call``, which pytest itself reads and removes as soon as the report's hooks are done.
    """
    excinfo = getattr(getattr(report, "call", None), "excinfo", None)
    error: BaseException | None = getattr(excinfo, "value", None)
    return error


# -- the configuration ---------------------------------------------------------------------------


def confcutdir(config: pytest.Config) -> Path | None:
    """Return the directory above which no conftest counts (``pluginmanager._confcutdir``).

    The option of that name is None where pytest has derived it from the ini file.
    """
    return config.pluginmanager._confcutdir


def forget_ini_file(config: pytest.Config) -> None:
    """Let a session have no ini file (``config._inipath``), where ``inipath`` cannot be set."""
    config._inipath = None


def make_basetemp(config: pytest.Config) -> Path | None:
    """Make the session's temporary directory (``config._tmp_path_factory``); None without it."""
    factory = getattr(config, "_tmp_path_factory", None)
    made: Path | None = None if factory is None else factory.getbasetemp()
    return made


def use_basetemp(config: pytest.Config, directory: Path) -> None:
    """Let a session use a temporary directory that is there, and leave it there at its end.

    ``_basetemp`` and ``_given_basetemp`` of ``config._tmp_path_factory``: one that was given is not
    removed.
    """
    factory = getattr(config, "_tmp_path_factory", None)
    if factory is not None:
        factory._basetemp = factory._given_basetemp = directory


def leave_basetemp(config: pytest.Config) -> None:
    """Let a session end without a look at its temporary directory, which another one tidies up.

    The plugin ``tmpdir``. A test may have become a user who must not even look.
    """
    plugin = config.pluginmanager.get_plugin("tmpdir")
    if plugin is not None:
        config.pluginmanager.unregister(plugin)


# -- representations -----------------------------------------------------------------------------


def native_representation(path: str, line: int, headline: str, text: str) -> Any:
    """Return a ``longrepr`` that survives pytest-xdist and gives the summary its line.

    ``ReprExceptionInfo`` and its parts: text alone is serialized as well, but has no place. The
    summary names ``path`` and ``line`` and says ``headline``; ``text`` is shown of the failure.

    """
    from _pytest._code import code

    entry = code.ReprEntryNative([f"{text}\n"])
    return code.ReprExceptionInfo(
        reprtraceback=code.ReprTraceback([entry], None, style="native"),
        reprcrash=code.ReprFileLocation(path, line, headline),
    )


def show_at_line(
    longrepr: Any, place: tuple[str, int], source: str, message: str, *, short: bool
) -> None:
    """Show a failure without a traceback by a line of source, as pytest shows others."""
    from _pytest._code import code

    shown = getattr(longrepr, "reprtraceback", None)
    if shown is None or [each.style for each in shown.reprentries] != ["value"]:
        return
    marked = [f"E   {line}".rstrip() for line in message.split("\n")]
    lines = [f">   {source}", *marked] if source else marked
    name = message.partition(":")[0].rpartition(".")[2]
    style: Literal["short", "long"] = "short" if short else "long"
    shown.style = style
    at = code.ReprFileLocation(*place, name)
    shown.reprentries[0] = code.ReprEntry(lines, None, None, at, style)


def terminal_writer(file: Any, *, colors: bool | None = None) -> TerminalWriter:
    """Return a writer to a file: ``_pytest._io.TerminalWriter``; representations write to one.

    ``colors`` None: as pytest decides by the file and ``NO_COLOR``, ``FORCE_COLOR``, ``PY_COLORS``.
    """
    from _pytest._io import TerminalWriter

    writer = TerminalWriter(file)
    if colors is not None:
        writer.hasmarkup = colors
    return writer


# -- captured output -----------------------------------------------------------------------------


def captured_streams(config: pytest.Config) -> tuple[Any, Any] | None:
    """Return what captures standard output and error, None for each that is not captured.

    ``out`` and ``err`` of the capture manager's ``_global_capturing``; None where there is none.
    Each has a ``tmpfile``, and with ``--capture=fd`` the terminal's descriptor ``targetfd_save``.
    """
    manager: Any = config.pluginmanager.get_plugin("capturemanager")
    capture = getattr(manager, "_global_capturing", None)
    if capture is None:
        return None
    return getattr(capture, "out", None), getattr(capture, "err", None)


def sections_of(item: pytest.Item, phase: str) -> list[tuple[str, str]]:
    """Return what has been captured in a phase of a test, as its report will have it.

    ``item._report_sections``, where the capture and the logging put what they read.
    """
    sections = getattr(item, "_report_sections", ())
    return [(f"Captured {key} {when}", text) for when, key, text in sections if when == phase]


def empty_capture(config: pytest.Config) -> None:
    """Drop what has been captured so far (``read_global_capture`` of the capture manager)."""
    if captured_streams(config) is not None:
        manager: Any = config.pluginmanager.get_plugin("capturemanager")
        manager.read_global_capture()


def memory_stream() -> type:
    """Return the class of the file that ``--capture=sys`` captures into, in memory: CaptureIO."""
    from _pytest.capture import CaptureIO

    return CaptureIO


# -- the terminal --------------------------------------------------------------------------------


def writer_of(reporter: Any) -> Any:
    """Return the writer of a terminal reporter (``_tw``), or None."""
    return getattr(reporter, "_tw", None)


def make_reporter(config: pytest.Config, file: Any, *, markup: bool, width: int) -> Any:
    """Return a terminal reporter that writes to a file, as wide and colored as another.

    ``_pytest.terminal.TerminalReporter`` (public in newer releases) with its ``_screen_width``.
    """
    from _pytest.terminal import TerminalReporter

    reporter: Any = TerminalReporter(config, file)
    writer = writer_of(reporter)
    writer.hasmarkup = reporter.hasmarkup = markup
    writer.fullwidth = reporter._screen_width = width
    return reporter


def redirect_writer(writer: Any, make: Callable[[Any], Any]) -> Any:
    """Put another file behind a writer (``_file``): what ``make`` returns for the one there.

    Returns:
        The file that was there; None where there is none, which stays so.

    """
    before = getattr(writer, "_file", None)
    if before is not None:
        writer._file = make(before)
    return before


def current_line(writer: Any) -> str | None:
    """Return what stands on the writer's line (``_current_line``); None where that is unknown."""
    line = getattr(writer, "_current_line", None)
    return None if line is None else str(line)


def set_current_line(writer: Any, line: str) -> None:
    """Let a writer take its line for one that begins so."""
    writer._current_line = line


def descriptor_of_faults(config: pytest.Config) -> int:
    """Return where ``faulthandler_timeout`` writes (``fault_handler_stderr_fd_key``), or -1."""
    from _pytest.faulthandler import fault_handler_stderr_fd_key

    return config.stash.get(fault_handler_stderr_fd_key, -1)


# -- tests of plugins ----------------------------------------------------------------------------


def keep_in_snapshots(*packages: str) -> Callable[[], None]:
    """Let ``pytester`` keep modules of packages: ``_pytest.pytester.SysModulesSnapshot``.

    It forgets what a test has imported. Modules that stay would hold the forgotten ones, and later
    imports make others, whose classes do not know the objects of the first. Returns an undo.
    """
    from _pytest import pytester

    module: Any = pytester
    before = module.SysModulesSnapshot

    def snapshot(preserve: Callable[[str], bool] | None = None) -> Any:
        def stays(name: str) -> bool:
            return name.partition(".")[0] in packages or bool(preserve and preserve(name))

        return before(preserve=stays)

    module.SysModulesSnapshot = snapshot

    def undo() -> None:
        module.SysModulesSnapshot = before

    return undo
