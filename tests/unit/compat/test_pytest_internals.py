"""Names of pytest and pluggy: each is there, and does what the plugin takes it for."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import _pytest._code.code
import _pytest._io
import _pytest.capture
import _pytest.fixtures
import _pytest.pytester
import _pytest.runner
import _pytest.skipping
import _pytest.terminal
import _pytest.warnings
import pytest

from pytest_cudafork.compat import pytest_internals
from tests.unit.compat import require

MODULES: dict[Any, dict[str, str]] = {
    _pytest.runner: {"runtestprotocol": "tests that are reported here"},
    _pytest.fixtures: {
        "FixtureDef": "fixtures of the parent in a forked child",
        "FuncFixtureInfo": "the rehearsal of a fork server",
    },
    _pytest.pytester: {"SysModulesSnapshot": "sessions in tests of plugins"},
    _pytest.skipping: {
        "evaluate_skip_marks": "skipped tests, which need no process",
        "evaluate_xfail_marks": "crashes that are expected",
    },
    _pytest.warnings: {"catch_warnings_for_item": "warnings about leased GPUs"},
    _pytest._code.code: {
        "TerminalRepr": "representations that were made in a child",
        "ReprEntryNative": "reports of a crash",
        "ReprExceptionInfo": "reports of a crash",
        "ReprFileLocation": "reports of a crash",
        "ReprTraceback": "reports of a crash",
    },
    _pytest._io: {"TerminalWriter": "representations that were made in a child"},
    _pytest.capture: {"CaptureIO": "the output of a crash with --capture=sys"},
    _pytest.terminal: {"TerminalReporter": "plugins that write to a child's terminal"},
}


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, names in MODULES.items() for name in names]
)
def test_pytest_still_has_the_name(module: Any, name: str) -> None:
    require("pytest", module, name, MODULES[module][name])


@pytest.fixture
def reporter(pytestconfig: pytest.Config) -> Any:
    """A terminal reporter of its own, for what is done to one."""
    return pytest_internals.make_reporter(pytestconfig, io.StringIO(), markup=False, width=33)


def test_sessions_still_have_a_state_of_what_is_set_up(request: pytest.FixtureRequest) -> None:
    session = request.session
    require("pytest", session, "_setupstate.stack", "tests in children")
    require("pytest", session, "_setupstate.teardown_exact", "tests in children")
    assert pytest_internals.is_anything_set_up(session)


def test_sessions_still_have_a_manager_of_fixtures(request: pytest.FixtureRequest) -> None:
    if pytest.version_tuple < (8,):
        manager = request.session._fixturemanager
        require("pytest", manager, "_arg2fixturedefs", "forked children")
    require("pytest", request.node, "_fixtureinfo.name2fixturedefs", "forked children")


def test_configs_still_have_their_private_attributes(pytestconfig: pytest.Config) -> None:
    require("pytest", pytestconfig, "_inipath", "children of a session without an ini file")
    require("pytest", pytestconfig, "_tmp_path_factory._basetemp", "tmp_path in a child")
    require("pytest", pytestconfig, "_tmp_path_factory._given_basetemp", "tmp_path in a child")
    require("pytest", pytestconfig.pluginmanager, "_confcutdir", "conftests of a child")
    assert pytest_internals.confcutdir(pytestconfig) == pytestconfig.pluginmanager._confcutdir
    made = pytest_internals.make_basetemp(pytestconfig)
    assert made is not None
    assert made.is_dir()


def test_a_protocol_runs_and_what_is_set_up_is_torn_down(pytester: pytest.Pytester) -> None:
    item = pytester.getitem(
        """
        import pytest
        told = []
        @pytest.fixture(scope="module")
        def wide():
            yield
            told.append("torn down")
        def test_it(wide):
            told.append("called")
        """,
        "test_it",
    )
    told = item.module.told  # type: ignore[attr-defined]
    pytest_internals.run_test_protocol(item, item)  # as if one of this module followed
    assert told == ["called"]
    assert pytest_internals.is_anything_set_up(item.session)
    pytest_internals.tear_down(item.session, None)
    assert not pytest_internals.is_anything_set_up(item.session)
    assert told == ["called", "torn down"]


def test_what_a_teardown_writes_is_a_section_of_its_test(pytester: pytest.Pytester) -> None:
    capture: Any = pytester.getitem("def test_func(): ...").config.pluginmanager
    require("pytest", capture.get_plugin("capturemanager"), "item_capture", "late teardowns")
    without = SimpleNamespace(get_plugin=lambda name: None)
    item: Any = SimpleNamespace(config=SimpleNamespace(pluginmanager=without))
    with pytest_internals.teardown_captured(item):
        pass


def test_finalizers_are_forgotten(pytester: pytest.Pytester) -> None:
    item = pytester.getitem(
        """
        import pytest
        told = []
        @pytest.fixture(scope="module")
        def wide():
            yield
            told.append("torn down")
        def test_it(wide):
            told.append("called")
        """,
        "test_it",
    )
    item.session._setupstate.setup(item)
    definition = item._fixtureinfo.name2fixturedefs["wide"][0]  # type: ignore[attr-defined]
    require("pytest", definition, "_finalizers", "fixtures of the parent in a forked child")
    pytest_internals.forget_finalizers(item)
    pytest_internals.tear_down(item.session, None)
    assert item.module.told == []  # type: ignore[attr-defined]


def test_a_function_without_fixtures_asks_for_none(request: pytest.FixtureRequest) -> None:
    info = pytest_internals.no_fixtures()
    made = pytest.Function.from_parent(
        request.session, name="made", callobj=lambda: None, fixtureinfo=info
    )
    assert made.fixturenames == []


def test_marks_are_evaluated(pytester: pytest.Pytester) -> None:
    first, second, third = pytester.getitems(
        """
        import pytest
        @pytest.mark.skipif("True", reason="so")
        def test_skipped(): pass
        @pytest.mark.xfail(raises=OSError, reason="known")
        def test_expected(): pass
        def test_plain(): pass
        """
    )
    assert pytest_internals.is_skipped(first)
    assert not pytest_internals.is_skipped(third)
    mark = pytest_internals.xfail_mark(second)
    assert (mark.raises, mark.reason) == (OSError, "known")
    assert pytest_internals.xfail_mark(third) is None


def test_warnings_are_under_the_filters_of_a_test(pytester: pytest.Pytester) -> None:
    item = pytester.getitem(
        """
        import pytest
        @pytest.mark.filterwarnings("error:strict")
        def test_it(): pass
        """,
        "test_it",
    )
    with pytest.raises(UserWarning), pytest_internals.catch_warnings(item):
        warnings.warn("strict", stacklevel=1)


def test_a_session_forgets_its_ini_file(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]")
    config = pytester.parseconfig()
    assert config.inipath is not None
    pytest_internals.forget_ini_file(config)
    assert config.inipath is None


def test_a_temporary_directory_can_be_given(pytester: pytest.Pytester, tmp_path: Path) -> None:
    config = pytester.parseconfigure()
    pytest_internals.use_basetemp(config, tmp_path)
    assert pytest_internals.make_basetemp(config) == tmp_path


def test_a_session_can_leave_its_temporary_directory_alone(pytester: pytest.Pytester) -> None:
    config = pytester.parseconfigure()
    assert config.pluginmanager.has_plugin("tmpdir")
    pytest_internals.leave_basetemp(config)
    assert not config.pluginmanager.has_plugin("tmpdir")
    pytest_internals.leave_basetemp(config)
    pytest_internals.leave_basetemp(pytester.parseconfigure("-p", "no:tmpdir"))


def test_a_session_without_the_plugin_has_no_temporary_directory(
    pytester: pytest.Pytester, tmp_path: Path
) -> None:
    config = pytester.parseconfig()  # not configured yet
    pytest_internals.use_basetemp(config, tmp_path)
    assert pytest_internals.make_basetemp(config) is None


def test_a_native_representation_names_a_place_and_shows_the_text() -> None:
    made = pytest_internals.native_representation("test_it.py", 7, "SIGSEGV", "the whole story")
    assert isinstance(made, pytest_internals.TerminalRepr)
    assert (made.reprcrash.path, made.reprcrash.lineno) == ("test_it.py", 7)  # type: ignore[attr-defined]
    assert made.reprcrash.message == "SIGSEGV"  # type: ignore[attr-defined]
    file = io.StringIO()
    made.toterminal(pytest_internals.terminal_writer(file, colors=False))
    assert "the whole story" in file.getvalue()


@pytest.mark.parametrize("colors", [False, True])
def test_a_writer_colors_or_not(colors: bool) -> None:
    file = io.StringIO()
    pytest_internals.terminal_writer(file, colors=colors).write("text", red=True)
    assert ("\x1b" in file.getvalue()) == colors


def test_captured_streams_are_those_of_the_session(pytestconfig: pytest.Config) -> None:
    manager = pytestconfig.pluginmanager.get_plugin("capturemanager")
    require("pytest", manager, "_global_capturing", "the output of a crash")
    require("pytest", manager, "read_global_capture", "the output of a forked child")
    streams = pytest_internals.captured_streams(pytestconfig)
    assert streams is not None
    method = pytestconfig.getoption("capture")
    if method == "no":
        assert streams == (None, None)
        return
    for stream in streams:
        require("pytest", stream, "tmpfile", "the output of a crash")
        if method == "fd":
            require("pytest", stream, "targetfd_save", "the output of a forked child")
    pytest_internals.empty_capture(pytestconfig)


def test_a_session_that_captures_nothing_has_no_streams(pytester: pytest.Pytester) -> None:
    config = pytester.parseconfig("-p", "no:capture")
    assert pytest_internals.captured_streams(config) is None
    pytest_internals.empty_capture(config)


def test_the_stream_in_memory_is_a_text_stream() -> None:
    assert issubclass(pytest_internals.memory_stream(), io.TextIOWrapper)


def test_a_reporter_is_as_wide_and_colored_as_it_is_told(reporter: Any) -> None:
    require("pytest", reporter, "_tw", "what a child writes to the terminal")
    require("pytest", reporter, "_screen_width", "what a child writes to the terminal")
    writer = pytest_internals.writer_of(reporter)
    assert (writer.fullwidth, writer.hasmarkup, reporter.hasmarkup) == (33, False, False)
    assert pytest_internals.writer_of(None) is None


def test_another_file_is_put_behind_a_writer(reporter: Any) -> None:
    writer = pytest_internals.writer_of(reporter)
    require("pytest", writer, "_file", "what a child writes to the terminal")
    other = io.StringIO()
    before = pytest_internals.redirect_writer(writer, lambda file: other)
    assert isinstance(before, io.StringIO)
    writer.write("here")
    assert (other.getvalue(), before.getvalue()) == ("here", "")
    assert pytest_internals.redirect_writer(None, lambda file: other) is None


def test_a_writer_knows_its_line(reporter: Any) -> None:
    writer = pytest_internals.writer_of(reporter)
    require("pytest", writer, "_current_line", "what a child writes to the terminal")
    pytest_internals.set_current_line(writer, "test_it.py ")
    assert writer.width_of_current_line == len("test_it.py ")
    assert pytest_internals.current_line(writer) == "test_it.py "
    assert pytest_internals.current_line(None) is None


def test_what_unittest_has_caught_is_known_and_can_be_forgotten(
    pytester: pytest.Pytester,
) -> None:
    test, plain = pytester.getitems(
        "import unittest\n"
        "class TestA(unittest.TestCase):\n    def test_a(self): pass\n"
        "def test_b(): pass\n"
    )
    error = ValueError("its own")
    with contextlib.suppress(ValueError):
        try:
            raise error
        finally:
            test.addError(test, sys.exc_info())  # type: ignore[attr-defined]
    assert pytest_internals.outcomes_of_unittest(test) == [error]
    assert pytest_internals.outcomes_of_unittest(plain) == []
    for item in (test, plain):
        pytest_internals.forget_outcomes_of_unittest(item)
        assert pytest_internals.outcomes_of_unittest(item) == []


def test_the_error_of_a_collection_is_on_its_report(pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile("raise ValueError('at import')")
    pytester.makepyfile(test_good="def test_a(): pass")
    seen: list[object] = []

    class Plugin:
        @pytest.hookimpl(wrapper=True)
        def pytest_make_collect_report(self) -> Any:
            report = yield
            seen.append(pytest_internals.collection_error(report))
            return report

    pytester.inline_run("--co", path, "test_good.py", plugins=[Plugin()])
    assert [str(each) for each in seen if each is not None] == ["at import"]
    assert None in seen


def test_a_failure_without_a_traceback_is_shown_by_a_line_of_source() -> None:
    try:
        raise ValueError("the message")
    except ValueError:
        shown = pytest.ExceptionInfo.from_current().getrepr(style="value")
    pytest_internals.show_at_line(
        shown, ("a.py", 3), "x = 1", "m.ValueError: first\nmore", short=False
    )
    assert str(shown).splitlines()[-5:] == [
        ">   x = 1",
        "E   m.ValueError: first",
        "E   more",
        "",
        "a.py:3: ValueError",
    ]
    before = str(shown)
    pytest_internals.show_at_line(shown, ("b.py", 1), "", "other", short=True)
    assert str(shown) == before, "it has a line already"
    pytest_internals.show_at_line("text", ("b.py", 1), "", "other", short=True)


def test_snapshots_of_the_modules_keep_those_of_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    first = _pytest.pytester.SysModulesSnapshot
    undo = pytest_internals.keep_in_snapshots("ours", "theirs")
    names = ("ours", "ours.part", "theirs.part", "oursnot", "zope.part")
    for preserve, kept in (
        (None, names[:3]),
        (lambda name: "zope" in name, (*names[:3], names[4])),
    ):
        snapshot = _pytest.pytester.SysModulesSnapshot(preserve)
        sys.modules.update(dict.fromkeys(names, sys))
        snapshot.restore()
        assert [name for name in names if name in sys.modules] == list(kept)
        for name in names:
            sys.modules.pop(name, None)
    undo()
    assert _pytest.pytester.SysModulesSnapshot is first


def test_where_faults_are_written_is_known(
    pytestconfig: pytest.Config, pytester: pytest.Pytester
) -> None:
    assert stat.S_IFMT(os.fstat(pytest_internals.descriptor_of_faults(pytestconfig)).st_mode)
    without = pytester.parseconfig("-p", "no:faulthandler")
    assert pytest_internals.descriptor_of_faults(without) == -1
