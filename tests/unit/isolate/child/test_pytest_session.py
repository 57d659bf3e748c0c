"""Tests of the session of a child, run in this process."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.compat import pytest_internals, pytest_reports
from pytest_cudafork.isolate import item_names, live_text
from pytest_cudafork.isolate.child import cov_plugin, pytest_session, rehearsal
from pytest_cudafork.isolate.child.pytest_session import WorkSession
from pytest_cudafork.isolate.child.reporter import Reporter
from pytest_cudafork.isolate.session.request import session_request
from pytest_cudafork.process import child
from pytest_cudafork.process.channel import EXIT_LOST
from pytest_cudafork.process.forking.short_stack import take_turns
from pytest_cudafork.process.protocol import messages
from tests.support.full_disk import full_disk
from tests.support.peer import Peer, of_kind

SOURCE = """
import pytest

SEEN = []

@pytest.fixture(scope="module")
def shared():
    SEEN.append("set up")
    yield
    SEEN.append("torn down")

def test_a(shared): pass
def test_b(): assert 0, "this one"
def test_c(): pass
"""

CONFTEST = """
def pytest_collection_modifyitems(items):
    del items[1:]
"""


@pytest.fixture(autouse=True)
def armed(session_undone: None, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Files that stacks were to be written to; what a session changes in a process is undone."""
    files: list[int] = []
    monkeypatch.setattr(child, "arm_stacks", files.append)
    return files


@pytest.fixture
def peer() -> Iterator[Peer]:
    """The parent."""
    made = Peer()
    yield made
    made.close()


Request = Callable[..., dict[str, Any]]


@pytest.fixture
def request_for(pytester: pytest.Pytester) -> Request:
    """Make the request of a parent with these options for a file of tests."""
    path = pytester.makepyfile(test_it=SOURCE)

    def make(*options: str, target: str = "") -> dict[str, Any]:
        parent = pytester.parseconfig(*options, str(pytester.path))
        return session_request(parent, [f"{path}{target}"])

    return make


class _Looks(WorkSession):
    """A session whose work is to look around."""

    def work(self, session: pytest.Session) -> None:
        self.config = session.config
        self.names = [item.name for item in session.items]
        self.args = session.config.args
        self.cwd = os.getcwd()
        factory: Any = session.config._tmp_path_factory  # type: ignore[attr-defined]
        self.basetemp = factory.getbasetemp()
        self.terminal = session.config.pluginmanager.get_plugin("terminalreporter")
        self.plugins = {name for name, _ in session.config.pluginmanager.list_name_plugin()}


def _run(request: dict[str, Any]) -> _Looks:
    made: list[_Looks] = []

    def plugin(cwd: int) -> _Looks:
        made.append(_Looks(request, cwd))
        return made[-1]

    pytest_session.run_pytest(request, plugin)
    return made[-1]


def test_it_collects_as_the_parent_and_keeps_every_test(
    pytester: pytest.Pytester, request_for: Request
) -> None:
    pytester.makeconftest(CONFTEST)
    session = _run(request_for("-k", "test_c"))
    assert session.names == ["test_a", "test_b", "test_c"]
    assert [item.name for item in session.items] == session.names
    assert session.errors == []
    assert session.args == [str(pytester.path)]  # what tests see of it
    assert os.environ["_CUDAFORK_ISOLATED"] == "1"


def test_it_works_in_the_directory_where_it_was_started(
    pytester: pytest.Pytester, request_for: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = request_for()
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    session = _run(request)
    assert session.cwd == str(here)
    assert session.config.invocation_params.dir == pytester.path


def test_it_writes_no_file_of_the_parents_and_uses_its_temporary_directory(
    pytester: pytest.Pytester, request_for: Request, tmp_path: Path
) -> None:
    request = request_for("--junit-xml=out.xml", "--sw")
    basetemp = tmp_path / "basetemp"
    basetemp.mkdir()
    session = _run({**request, "basetemp": str(basetemp)})
    assert not (pytester.path / "out.xml").exists()
    cached = {path.name for path in (pytester.path / ".pytest_cache").rglob("*")}
    assert not cached & {"lastfailed", "nodeids"}
    assert not session.plugins & {"lfplugin", "nfplugin", "stepwiseplugin"}
    assert pytest_reports.junit_xml(session.config) is None
    assert session.basetemp == basetemp


def test_where_no_folder_takes_a_temporary_file_that_of_the_parent_has_to_do(
    request_for: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk a file can be made, and not filled: pytest makes some for what is written."""
    given = request_for("-p", "no:cacheprovider")  # pytest 7 needs to write its cache
    request = {**given, "temporary": str(tmp_path), "basetemp": str(tmp_path)}
    monkeypatch.setattr(tempfile, "tempdir", None)
    with full_disk():
        session = _run(request)
    assert session.names == ["test_a", "test_b", "test_c"]
    assert tempfile.tempdir == str(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_where_a_folder_takes_temporary_files_none_is_settled_on_for_the_tests(
    request_for: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = {**request_for("-s"), "temporary": str(tmp_path)}
    monkeypatch.setattr(tempfile, "tempdir", None)
    _run(request)
    assert tempfile.tempdir is None


# pytest leaves /dev/null open where it cannot begin
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_where_no_temporary_file_can_be_made_the_parent_is_told_so_in_short(
    request_for: Request, peer: Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = request_for()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    pytest_session.run_session(child.Task(request, 99, peer.channel))
    failed, over = peer.said()
    assert failed.text.startswith("no temporary file can be made: [Errno 2] No such file")
    assert f"'{tmp_path}/gone/" in failed.text
    assert failed.text.endswith("Make room there, or let TMPDIR name a folder that has some")
    assert over == messages.TestOver(last=True)


def test_it_tidies_up_nothing_in_the_parents_temporary_directory(
    request_for: Request, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to("nowhere")  # pytest removes such ones at the end of a session
    _run({**request_for(), "basetemp": str(tmp_path)})
    assert (tmp_path / "link").is_symlink()


def test_what_went_wrong_in_its_collection_is_kept(
    pytester: pytest.Pytester, request_for: Request
) -> None:
    request = request_for("--continue-on-collection-errors")
    pytester.makepyfile(test_it="import no_such_module")
    session = _run(request)
    assert session.names == []
    (error,) = session.errors
    assert "No module named 'no_such_module'" in error


def test_plugins_find_a_terminal_as_wide_as_the_parents_and_it_shows_nothing(
    request_for: Request,
) -> None:
    session = _run({**request_for(), "terminal": {"markup": False, "width": 33}})
    assert isinstance(session.terminal, live_text.StandIn)
    assert pytest_internals.writer_of(session.terminal).fullwidth == 33
    assert pytest_internals.current_line(pytest_internals.writer_of(session.terminal)) == ""


def test_where_the_parent_has_no_terminal_they_find_none(request_for: Request) -> None:
    assert _run({**request_for(), "terminal": None}).terminal is None


def test_pytest_cov_has_a_stand_in_where_it_measures(
    request_for: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs: list[pytest.Config] = []
    monkeypatch.setattr(cov_plugin, "stand_in", configs.append)
    _run({**request_for(), "pytest_cov": False})
    assert configs == []
    session = _run({**request_for(), "pytest_cov": True})
    assert configs == [session.config]


def test_what_the_work_is_the_session_has_to_say(request_for: Request) -> None:
    with pytest.raises(NotImplementedError):
        WorkSession(request_for(), -1).work(SimpleNamespace())  # type: ignore[arg-type]


def _order(pytester: pytest.Pytester, name: str, following: str | None = None) -> messages.Run:
    path = str(pytester.path / "test_it.py")
    return messages.Run(
        test=[[path, name], []],
        next=None if following is None else [[path, following], []],
        surroundings=child.surroundings({}),
        position=None,
        reruns=None,
    )


def _outcomes(said: list[Any]) -> list[str]:
    return [one.data["outcome"] for one in of_kind(said, messages.Report)]


def test_a_fresh_interpreter_runs_the_tests_that_its_parent_orders(
    pytester: pytest.Pytester, request_for: Request, peer: Peer, armed: list[int]
) -> None:
    request = request_for()
    peer.orders(_order(pytester, "test_a", "test_b"), _order(pytester, "test_b"))
    assert pytest_session.run_session(child.Task(request, 99, peer.channel)) == 0
    said = peer.said()
    assert _outcomes(said) == ["passed", "passed", "passed", "passed", "failed", "passed"]
    assert [one.last for one in of_kind(said, messages.TestOver)] == [False, True]
    assert of_kind(said, messages.InternalError) == []
    assert armed == [99, 99]  # before the tests, and once pytest has disarmed them


def test_a_test_that_does_not_exist_there_is_missing(
    request_for: Request, peer: Peer, armed: list[int]
) -> None:
    request = request_for(target="::test_other")
    assert pytest_session.run_session(child.Task(request, 99, peer.channel)) == 0
    missing, over = peer.said()
    assert (missing.found, missing.errors) == ([], [])
    assert over == messages.TestOver(last=True)
    assert armed == [99]


def test_a_session_that_cannot_begin_is_told_with_its_traceback(
    request_for: Request, peer: Peer
) -> None:
    request = {**request_for(), "invocation_dir": "/no/such/directory"}
    assert pytest_session.run_session(child.Task(request, 99, peer.channel)) == 0
    error, over = peer.said()
    assert "FileNotFoundError" in error.text
    assert over.last


def test_an_error_in_a_plugin_is_told(
    pytester: pytest.Pytester, request_for: Request, peer: Peer
) -> None:
    request = request_for()
    pytester.makeconftest("def pytest_collection_finish(): raise OSError('a broken plugin')")
    peer.orders()
    pytest_session.run_session(child.Task(request, 99, peer.channel))
    errors = of_kind(peer.said(), messages.InternalError)
    assert any("OSError: a broken plugin" in one.text for one in errors)


class _Left(Exception):  # no error: the process would have ended
    """Stands for the end of the process."""


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What happens to a process that was forked; here it goes on with its parent's."""
    done: list[Any] = []

    def leave(status: int, channel: object) -> None:
        done.append(status)
        raise _Left

    class Rehearsal:
        def __init__(self, session: pytest.Session) -> None:
            pass

        def run(self, times: int) -> None:
            done.append("rehearsed")

    monkeypatch.setattr(child, "leave", leave)
    monkeypatch.setattr(child, "prepare", lambda stacks_fd: done.append(f"stacks to {stacks_fd}"))
    monkeypatch.setattr(child, "forget_parent_exit_work", lambda: done.append("forgot"))
    monkeypatch.setattr(rehearsal, "Rehearsal", Rehearsal)
    return done


@pytest.mark.parametrize("practice", [False, True])
def test_a_forked_process_goes_on_with_what_is_set_up_and_does_not_tear_it_down(
    pytester: pytest.Pytester, peer: Peer, forked: list[Any], practice: bool
) -> None:
    first, second, _ = tests = pytester.getitems(SOURCE)
    first.session.items = tests
    first.session._setupstate.setup(first)
    pytest_internals.tear_down(first.session, second)  # the module stays
    name = item_names.name_of(second)
    surroundings = child.surroundings({"ADDED": "1"})
    peer.orders(messages.Run(list(name), None, surroundings, None, None))
    reporter = Reporter(first.config)
    first.config.pluginmanager.register(reporter)
    env = {"ADDED": "1"}
    with pytest.raises(_Left):
        take_turns(
            pytest_session.run_forked(second, env, reporter, peer.channel, 7, practice=practice)
        )
    assert forked == ["forgot", "stacks to 7", *(["rehearsed"] if practice else []), 0]
    said = peer.said()
    assert _outcomes(said) == ["passed", "failed", "passed"]
    assert said[-1].last
    assert os.environ["ADDED"] == "1"
    assert second.module.SEEN == ["set up"]  # type: ignore[attr-defined]


def test_a_forked_process_that_fails_tells_it(
    pytester: pytest.Pytester, peer: Peer, forked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(item: pytest.Item) -> None:
        raise AttributeError("another pytest")

    monkeypatch.setattr(pytest_internals, "forget_finalizers", fail)
    item = pytester.getitem(SOURCE, "test_a")
    with pytest.raises(_Left):
        take_turns(pytest_session.run_forked(item, {}, Reporter(item.config), peer.channel, 7))
    error, over = peer.said()
    assert "AttributeError: another pytest" in error.text
    assert over.last
    assert forked[-1] == EXIT_LOST
