"""Tests of the configuration of a process that works for another, made in this process."""

from __future__ import annotations

import io
import logging
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.isolate.child import pytest_config
from pytest_cudafork.isolate.session.request import session_request

Make = Callable[[dict[str, Any]], pytest.Config]


@pytest.fixture(autouse=True)
def _no_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the sessions here load no plugin that happens to be installed: that takes a second."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


@pytest.fixture
def make() -> Iterator[Make]:
    """``make_config``, whose configurations are ended with the test."""
    made: list[pytest.Config] = []

    def make_one(request: dict[str, Any]) -> pytest.Config:
        made.append(pytest_config.make_config(request))
        return made[-1]

    yield make_one
    for config in made:
        config._ensure_unconfigure()


@pytest.fixture
def target(pytester: pytest.Pytester) -> str:
    """What the parent says that is to be collected."""
    return f"{pytester.makepyfile('def test_a(): pass')}::test_a"


def test_options_directories_and_ini_file_are_the_parents(
    pytester: pytest.Pytester, target: str, make: Make
) -> None:
    ini = pytester.makeini("[pytest]\naddopts = --tb=short\n")
    args = ("-k", "a", "-p", "no:cacheprovider", "--durations=3", str(pytester.path))
    parent = pytester.parseconfig(*args)
    child = make(session_request(parent, [target]))
    assert (child.rootpath, child.inipath) == (pytester.path, ini)
    for name in ("keyword", "tbstyle", "durations", "capture", "verbose"):
        assert child.getoption(name) == parent.getoption(name), name
    assert (child.getoption("keyword"), child.getoption("tbstyle")) == ("a", "short")
    assert not child.pluginmanager.has_plugin("cacheprovider")
    assert child.args == [target]
    assert list(child.invocation_params.args) == list(parent.invocation_params.args)
    assert child.invocation_params.plugins is None


def test_what_is_the_parents_affair_alone_is_off(
    pytester: pytest.Pytester, target: str, make: Make
) -> None:
    options = ("-x", "--lf", "--pdb", "--trace", "--collect-only", "--sw", str(pytester.path))
    child = make(session_request(pytester.parseconfig(*options), [target]))
    told = {name: child.getoption(name) for name in ("maxfail", "lf", "usepdb", "trace")}
    assert told == {"maxfail": 0, "lf": False, "usepdb": False, "trace": False}
    assert (child.getoption("collectonly"), child.getoption("stepwise")) == (False, False)
    assert not child.pluginmanager.has_plugin("terminal")  # its options are there
    assert child.getoption("reportchars") is not None
    assert child.getoption("basetemp") is None


def test_options_that_are_not_there_stay_absent(
    pytester: pytest.Pytester, target: str, make: Make
) -> None:
    request = session_request(pytester.parseconfig(str(pytester.path)), [target])
    for name in ("json_report", "pastebin"):
        request["options"].pop(name, None)
    child = make(request)
    assert not hasattr(child.option, "json_report")
    assert child.option.pastebin is None  # pytest's own default


def test_a_session_without_an_ini_file_finds_no_other(
    pytester: pytest.Pytester, target: str, make: Make
) -> None:
    parent = pytester.parseconfig(f"--rootdir={pytester.path}", str(pytester.path))
    assert parent.inipath is None
    request = session_request(parent, [target])
    pytester.makeini("[pytest]\naddopts = --no-such-option\n")
    assert make(request).inipath is None


def test_warnings_as_errors_do_not_meet_this_package(
    pytester: pytest.Pytester, target: str, make: Make
) -> None:
    parent = pytester.parseconfig("-W", "error", str(pytester.path))
    child = make(session_request(parent, [target]))
    first, last = child.getoption("pythonwarnings")
    assert first == "error"
    assert last.startswith("ignore:Module already imported")


def test_an_option_whose_type_is_not_there_yet_has_its_default(
    pytester: pytest.Pytester, target: str, make: Make
) -> None:
    request = session_request(pytester.parseconfig("-k", "a", str(pytester.path)), [target])
    request["options"]["keyword"] = pickle.dumps(Path).replace(b"pathlib", b"no_such")
    assert make(request).getoption("keyword") == ""


@pytest.mark.parametrize("workerinput", [None, {"workerid": "gw3"}])
def test_a_worker_of_xdist_has_children_that_know_its_name(
    pytester: pytest.Pytester, target: str, make: Make, workerinput: Any
) -> None:
    request = session_request(pytester.parseconfig(str(pytester.path)), [target])
    child: Any = make({**request, "workerinput": workerinput})
    assert getattr(child, "workerinput", None) == workerinput
    assert getattr(child, "workeroutput", None) == (None if workerinput is None else {})


class _Logging:
    """Of pytest's plugin for logs, what is used."""

    def __init__(self) -> None:
        self.log_file_handler = logging.StreamHandler(io.StringIO())


def _config(plugin: object) -> Any:
    return SimpleNamespace(pluginmanager=SimpleNamespace(get_plugin=lambda name: plugin))


def test_the_log_goes_to_the_end_of_the_parents_file_where_no_option_does_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pytest_config, "_APPENDS_LOG", False)
    path = tmp_path / "log"
    path.write_text("the parent's\n")
    plugin = _Logging()
    pytest_config.append_log(_config(plugin), str(path))
    with plugin.log_file_handler.stream as file:
        file.write("the child's\n")
    assert path.read_text() == "the parent's\nthe child's\n"


@pytest.mark.parametrize(
    ("path", "plugin", "option"),
    [(None, _Logging(), False), ("log", None, False), ("log", _Logging(), True)],
)
def test_else_the_log_is_left_alone(
    path: str | None,
    plugin: _Logging | None,
    option: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pytest_config, "_APPENDS_LOG", option)
    monkeypatch.chdir(tmp_path)
    pytest_config.append_log(_config(plugin), path)
    assert not (tmp_path / "log").exists()
    if plugin is not None:
        assert isinstance(plugin.log_file_handler.stream, io.StringIO)
