"""What the server of interpreters does ahead of a session: the session cannot tell."""

from __future__ import annotations

import compileall
import functools
import importlib
import importlib.machinery
import os
import re
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import _pytest.config
import _pytest.fixtures
import pytest
from _pytest.assertion import rewrite

from tests.support import interpreter_programs, interpreter_servers, interpreters, session_ahead

pytestmark = pytest.mark.slow

Both = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def servers() -> Iterator[interpreter_servers.Servers]:
    """Servers of these tests, which are started when they are asked for the first time."""
    servers = interpreter_servers.Servers()
    yield servers
    servers.close()


@pytest.fixture
def both(
    servers: interpreter_servers.Servers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Both:
    """Run a session from the server and a fresh one, which must not differ."""
    monkeypatch.delenv(interpreters.FRESH, raising=False)
    monkeypatch.setattr(interpreters, "servers", lambda: servers)
    monkeypatch.setattr(interpreter_programs, "_LEFT_OUT", ())
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.chdir(tmp_path)

    def run(*args: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pytest", *args]
        env = {**os.environ, **variables}
        forked = interpreters.run(command, timeout=120, env=env)
        fresh = interpreters.run(command, timeout=120, env=env, fresh="to compare")
        assert said(forked) == said(fresh)
        return forked

    return run


def said(done: subprocess.CompletedProcess[str]) -> tuple[int, list[str], str]:
    """Return how a session ended and what it wrote, without addresses of objects."""
    out = re.sub(r"0x[0-9a-f]+|'\d{9,}'", "ADDRESS", done.stdout)
    return done.returncode, out.splitlines(), done.stderr


SHOW = """
import _pytest.config
import _pytest.python
import pytest

def show(*values):
    print(*map(repr, values))

def pytest_sessionstart(session):
    config = session.config
    manager, parser = config.pluginmanager, config._parser
    for name, plugin in manager.list_name_plugin():
        show(name, plugin)
    for name, caller in sorted(vars(manager.hook).items()):
        show(name, [one.plugin for one in getattr(caller, "get_hookimpls", list)()])
    show(config.invocation_params, config.args, config.rootpath, config.inipath)
    show(sorted(vars(config.option).items()), parser._inidict, parser._ini_aliases)
    show(sorted(vars(config)), parser.prog, [(one.name, one.options) for one in parser._groups])
    show(_pytest.config.get_config.__module__)
    other = _pytest.config.get_config(["a"], prog="other")
    show(other is config, other.invocation_params, other._parser.prog)
    show([name for name, _ in other.pluginmanager.list_name_plugin()])

@pytest.fixture
def late(): pass
_pytest.python.late = late

@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session):
    for name, found in session._fixturemanager._arg2fixturedefs.items():
        show(name, [(one.func.__module__, one.scope, one.baseid) for one in found])
"""

TEST = """
import functools, pytest
def test_a(late, tmp_path, capsys): pass

class TestB:
    @staticmethod
    @pytest.fixture
    def wrapped(): pass

    def test_b(self): assert [1] == [2]

@functools.wraps(pytest.fixture(lambda: 1))
def hidden(): pass
"""


@pytest.mark.parametrize(
    ("args", "variables"),
    [
        ((), {}),
        (("-p", "no:warnings", "-p", "no:not_there"), {}),
        (("-pno:not_there", "-p", "no:cacheprovider"), {}),
        (("-p", "pytester", "-p", "no:pytester"), {}),
        (("-p", "no:main"), {}),
        (("-p", "no:a/conftest.py"), {}),
        (("--help",), {}),
        (("--no-such-option",), {}),
        (("--fixtures",), {}),
        (("-p", "no:terminal"), {}),
        ((), {"TOX_ENV_DIR": "/nowhere"}),
        (("--trace-config", "-p", "no:x"), {}),
    ],
)
def test_a_session_is_the_same(
    both: Both, args: tuple[str, ...], variables: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "conftest.py").write_text(SHOW)
    (tmp_path / "test_it.py").write_text(TEST)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\ncache_dir = here\naddopts = -p no:cacheprovider"
    )
    both("-qq", "--tb=short", *args, **variables)


@pytest.fixture
def first(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What is prepared, offered to the first that asks pytest for settings."""
    monkeypatch.setattr(_pytest.config, "get_config", _pytest.config.get_config)
    for name in session_ahead.ASKED:
        monkeypatch.delenv(name, raising=False)
    prepared = session_ahead.PreparedConfig()
    if prepared.config is None:
        pytest.skip("this pytest does not say by which name it calls itself in its help")
    first = prepared.config
    prepared.offer()
    return first


def test_the_first_session_gets_what_is_prepared_and_no_other(
    first: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    offered = _pytest.config.get_config
    monkeypatch.chdir(tmp_path)
    plugins = [object()]
    config = _pytest.config.get_config(["x", "-p", "no:absent"], plugins, prog="me")
    assert config is first
    assert (config._parser.prog, config.invocation_params.args) == ("me", ("x", "-p", "no:absent"))
    assert config.invocation_params.plugins is plugins
    assert config.invocation_params.dir == tmp_path
    assert config.pluginmanager.is_blocked("absent")
    assert _pytest.config.get_config is not offered
    assert _pytest.config.get_config(prog="me") is not first


@pytest.mark.parametrize("args", [["-p", "no:cacheprovider"], ["-pno:terminal"], ["-p", "no:nose"]])
def test_what_blocks_a_plugin_of_pytest_makes_them_anew(first: Any, args: list[str]) -> None:
    blocks = args[-1].rpartition(":")[2] in _pytest.config.default_plugins
    assert (_pytest.config.get_config(args, prog="me") is not first) == blocks


def test_what_cannot_be_blocked_is_an_error_as_ever(first: Any) -> None:
    with pytest.raises(pytest.UsageError, match="main cannot be disabled"):
        _pytest.config.get_config(["-p", "no:main"], prog="me")


@pytest.mark.parametrize("name", session_ahead.ASKED)
def test_a_variable_that_decides_makes_them_anew(
    first: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "")  # as good as not set, but that is pytest's to say
    assert _pytest.config.get_config(prog="me") is not first


# argparse asks for them to format a help, which it throws away.
FORMATTING = {
    *("COLUMNS", "LINES", "LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG"),
    *("PYTHON_COLORS", "NO_COLOR", "FORCE_COLOR", "TERM"),
}


def test_no_other_variable_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = set()

    class Noting(dict[str, str]):
        def __getitem__(self, name: str) -> str:
            asked.add(name)
            return super().__getitem__(name)

        def get(self, name: str, default: Any = None) -> Any:
            asked.add(name)
            return super().get(name, default)

        def __contains__(self, name: object) -> bool:
            asked.add(str(name))
            return super().__contains__(name)

    monkeypatch.setattr(os, "environ", Noting(os.environ))
    _pytest.config.get_config()
    monkeypatch.undo()
    assert "PYTEST_DEBUG" in asked
    assert asked - FORMATTING <= set(session_ahead.ASKED)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package with two modules, compiled, that nobody has imported."""
    name = "read_ahead_by_a_test"
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").touch()
    for module in ("one", "two"):
        (folder / f"{module}.py").write_text(f"name = {module!r}\n")
    compileall.compile_dir(folder, quiet=1)
    (folder / "not_compiled.py").write_text("name = 'three'\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    for module in [one for one in sys.modules if one.startswith(name)]:
        del sys.modules[module]
    sys.path_importer_cache.pop(str(folder), None)


def test_code_that_was_read_is_executed(package: str, tmp_path: Path) -> None:
    read = session_ahead.ReadCode(package)
    folder = tmp_path / package
    assert sorted(Path(path).name for path in read.known) == ["__init__.py", "one.py", "two.py"]
    assert package not in sys.modules
    path = str(folder / "one.py")
    read.known[path] = read.known[path][0], compile("name = 'it was read'", path, "exec")
    one = importlib.import_module(f"{package}.one")
    assert one.name == "it was read"
    assert importlib.import_module(f"{package}.two").name == "two"
    assert importlib.import_module(f"{package}.not_compiled").name == "three"
    assert type(one.__loader__) is importlib.machinery.SourceFileLoader
    assert type(sys.path_importer_cache[str(folder)]) is importlib.machinery.FileFinder
    assert one.__loader__.get_source(one.__name__) == "name = 'one'\n"


def test_code_of_another_source_is_not_executed(package: str, tmp_path: Path) -> None:
    session_ahead.ReadCode(package)
    folder = tmp_path / package
    (folder / "one.py").write_text("name = 'another'\n")
    (folder / "new.py").write_text("name = 'new'\n")
    os.utime(folder)
    assert importlib.import_module(f"{package}.one").name == "another"
    assert importlib.import_module(f"{package}.new").name == "new"
    (folder / "two.py").write_text("no Python\n")
    with pytest.raises(SyntaxError):
        importlib.import_module(f"{package}.two")


def test_a_package_that_is_not_there_is_not_read() -> None:
    assert session_ahead.ReadCode("no_package_of_this_name").known == {}


def test_names_are_left_out_only_of_modules_that_are_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = _pytest.fixtures
    names = session_ahead.FixtureNames([module])
    if names.names(module) == dir(module):
        pytest.skip("this pytest looks for no wrappers")
    assert names.names(module) == ["pytestconfig"]
    assert names.names(os) == dir(os)
    assert names.names(self := object()) == dir(self)
    with monkeypatch.context() as patch:
        patch.setattr(module, "added", 1, raising=False)
        assert names.names(module) == dir(module)
    with monkeypatch.context() as patch:
        patch.setattr(module, "cast", 1)
        assert names.names(module) == dir(module)
    assert names.names(module) == ["pytestconfig"]


NAMES = [
    *("torch", "torch.nn", "test_a", "a.test_b", "a_test", "conftest", "a.conftest", "marked"),
    *("marked.part", "marked_not", "initial", "a.b-c", "a.", "", "a.checks", "a.TEST_b"),
]


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("session", [True, False])
@pytest.mark.parametrize("patterns", [["test_*.py", "*_test.py"], ["*.py"], ["a/*.py"], []])
def test_the_first_look_at_a_module_has_the_same_result(
    pytestconfig: pytest.Config,
    monkeypatch: pytest.MonkeyPatch,
    patterns: list[str],
    session: bool,
    checked: bool,
) -> None:
    kind = rewrite.AssertionRewritingHook

    def looks() -> list[Any]:
        hook: Any = kind(pytestconfig)
        hook.fnpats = patterns
        hook._must_rewrite = {"marked"}
        hook.session = SimpleNamespace(_initialpaths=["/x/initial.py"]) if session else None
        hook._session_paths_checked = checked
        traced: list[str] = []
        state = SimpleNamespace(trace=traced.append)
        seen: list[Any] = []
        for name in NAMES:
            try:
                seen.append(hook._early_rewrite_bailout(name, state))
            except ValueError as error:
                seen.append(repr(error))
        return [seen, traced, hook._basenames_to_check_rewrite, hook._marked_for_rewrite_cache]

    expected = looks()
    monkeypatch.setattr(kind, "_early_rewrite_bailout", kind._early_rewrite_bailout)
    session_ahead.rewrite_fast()
    assert looks() == expected


class Odd:
    """Attributes of every kind, fixtures among them."""

    @pytest.fixture
    def plain(self) -> None: ...

    @staticmethod
    @pytest.fixture
    def static() -> None: ...

    @functools.wraps(plain)
    def wraps(self) -> None: ...

    @functools.lru_cache  # noqa: B019  # nobody calls it
    def cached(self) -> None: ...

    @property
    def its_property(self) -> None: ...

    @classmethod
    def of_class(cls) -> None: ...

    marked = pytest.hookimpl(tryfirst=True)(lambda self: None)
    partial = functools.partial(print)
    mocked = mock.Mock()
    number, text, nothing, inner, module = 1, "text", None, int, os


def test_wrapped_fixtures_are_found_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    manager: Any = _pytest.fixtures.FixtureManager
    if not hasattr(manager, "_find_wrapped_fixture_def"):
        pytest.skip("this pytest looks for no wrappers")
    unequal = types.FunctionType((lambda: 1).__code__, {})
    setattr(unequal, "_mock_name", "it")  # noqa: B010  # mypy
    odd = [*vars(Odd).values(), *vars(object).values(), *vars(_pytest.fixtures).values(), unequal]
    find = manager._find_wrapped_fixture_def
    expected = [find(None, one) for one in odd]
    assert len([one for one in expected if one is not None]) >= 3
    assert list(map(functools.partial(session_ahead._finds_wrapped(find), None), odd)) == expected
