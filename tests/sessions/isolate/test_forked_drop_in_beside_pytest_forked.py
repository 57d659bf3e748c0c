"""Beside pytest-forked: it keeps its option and marker, and ours takes over only if asked.

A stand-in with its names takes its place: it notes the tests it is asked for and runs them in the
session's process, so that the tests hold for every pytest, with and without the real one.
"""

from __future__ import annotations

import itertools
import os

import pytest

from tests.support.sessions import assert_no_crash, run_session

PEER = """
import pytest

def pytest_addoption(parser):
    group = parser.getgroup("forked", "forked subprocess test execution")
    group.addoption("--forked", action="store_true", dest="forked", default=False)

def pytest_load_initial_conftests(early_config, parser, args):
    early_config.addinivalue_line("markers", "forked: Always fork for this test.")

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    if item.config.getvalue("forked") or item.get_closest_marker("forked"):
        with open("theirs", "a") as file:
            file.write(item.name + "\\n")
"""

SUITE = """
import os
import pytest

def note(name):
    with open("pids", "a") as file:
        file.write(f"{name} {os.getpid()}\\n")

def test_plain():
    note("plain")

@pytest.mark.forked
def test_marked():
    note("marked")
"""

OURS = ("-p", "pytest_cudafork.plugin")
THEIRS = ("-p", "pytest_forked")
BLOCKED = ("-p", "no:pytest_forked")
AUTOLOAD = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": ""}


@pytest.fixture
def peer(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the stand-in, as a module and as a distribution with an entry point."""
    (pytester.path / "pytest_forked.py").write_text(PEER, encoding="utf-8")
    folder = pytester.mkdir("a_stand_in-1.0.dist-info")
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: a-stand-in\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[pytest11]\npytest_forked = pytest_forked\n")
    monkeypatch.setenv("PYTHONPATH", str(pytester.path), prepend=os.pathsep)
    conftest = "import os\ndef pytest_collection(): open('session', 'w').write(str(os.getpid()))"
    pytester.makeconftest(conftest)
    pytester.makepyfile(test_suite=SUITE)


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_a_test_with_both_marks_is_ours_and_runs_once(
    pytester: pytest.Pytester, peer: None, method: str
) -> None:
    pytester.makepyfile(
        test_suite=SUITE
        + f"""
@pytest.mark.forked
@pytest.mark.cuda_isolated(method={method!r})
def test_both():
    note("both")
"""
    )
    result = run_session(pytester, *OURS, *THEIRS)
    assert_no_crash(result)
    result.assert_outcomes(passed=3)
    assert not theirs(pytester)
    assert (pytester.path / "pids").read_text(encoding="utf-8").count("both") == 1


def theirs(pytester: pytest.Pytester) -> list[str]:
    """Return the tests that the stand-in was asked for."""
    path = pytester.path / "theirs"
    return path.read_text(encoding="utf-8").split() if path.exists() else []


def isolated(pytester: pytest.Pytester) -> set[str]:
    """Return the tests that ran in other processes than the session's."""
    session = (pytester.path / "session").read_text()
    lines = (pytester.path / "pids").read_text(encoding="utf-8").splitlines()
    return {line.split()[0] for line in lines if line.split()[1] != session}


@pytest.mark.usefixtures("peer")
@pytest.mark.parametrize("plugins", list(itertools.permutations([OURS, THEIRS])))
def test_it_keeps_its_option_and_the_marker_is_ours_in_any_order(
    pytester: pytest.Pytester, plugins: tuple[tuple[str, ...], ...]
) -> None:
    loaded = tuple(itertools.chain(*plugins))
    result = run_session(pytester, "--forked", "--strict-markers", plugin=loaded)
    assert_no_crash(result)
    result.assert_outcomes(passed=2)
    assert theirs(pytester) == ["test_plain"]
    assert isolated(pytester) == {"marked"}


@pytest.mark.usefixtures("peer")
def test_without_the_option_a_marked_test_is_ours_and_runs_once(pytester: pytest.Pytester) -> None:
    result = run_session(pytester, plugin=(*OURS, *THEIRS))
    result.assert_outcomes(passed=2)
    assert not theirs(pytester)
    assert isolated(pytester) == {"marked"}
    assert (pytester.path / "pids").read_text(encoding="utf-8").count("marked") == 1


@pytest.mark.usefixtures("peer")
def test_option_and_marker_are_told_once(pytester: pytest.Pytester) -> None:
    for plugins in ((*OURS, *THEIRS), OURS):
        result = run_session(pytester, "--help", plugin=plugins)
        assert_no_crash(result)
        assert sum(line.strip().startswith("--forked") for line in result.outlines) == 1
        result = run_session(pytester, "--markers", plugin=plugins)
        assert sum("@pytest.mark.forked" in line for line in result.outlines) == 1


@pytest.mark.usefixtures("peer")
@pytest.mark.parametrize("plugins", list(itertools.permutations([OURS, THEIRS, BLOCKED])))
def test_blocked_it_gives_way_wherever_ours_is_loaded(
    pytester: pytest.Pytester, plugins: tuple[tuple[str, ...], ...]
) -> None:
    loaded = tuple(itertools.chain(*plugins))
    result = run_session(pytester, "--forked", plugin=loaded)
    assert_no_crash(result)
    result.assert_outcomes(passed=2)
    if plugins.index(BLOCKED) < plugins.index(THEIRS):  # the last word on a plugin counts
        assert theirs(pytester) == ["test_plain"]
        return
    assert not theirs(pytester)
    assert isolated(pytester) == {"plain", "marked"}


@pytest.mark.usefixtures("peer")
def test_installed_and_not_loaded_it_is_as_good_as_absent(pytester: pytest.Pytester) -> None:
    result = run_session(pytester, "--forked", plugin=OURS)
    assert_no_crash(result)
    result.assert_outcomes(passed=2)
    assert not theirs(pytester)
    assert isolated(pytester) == {"plain", "marked"}


@pytest.mark.usefixtures("peer")
def test_loaded_by_its_entry_point_it_keeps_or_gives_way(pytester: pytest.Pytester) -> None:
    result = run_session(pytester, "--forked", env=AUTOLOAD, plugin=())
    assert_no_crash(result)
    result.assert_outcomes(passed=2)
    assert theirs(pytester) == ["test_plain"]
    (pytester.path / "theirs").unlink()
    (pytester.path / "pids").unlink()
    result = run_session(pytester, "--forked", env=AUTOLOAD, plugin=BLOCKED)
    assert_no_crash(result)
    result.assert_outcomes(passed=2)
    assert not theirs(pytester)
    assert isolated(pytester) == {"plain", "marked"}


@pytest.mark.usefixtures("peer")
def test_loaded_by_a_conftest_it_keeps_its_option(pytester: pytest.Pytester) -> None:
    with (pytester.path / "conftest.py").open("a", encoding="utf-8") as file:
        file.write("\npytest_plugins = ['pytest_forked']\n")
    result = run_session(pytester, "--forked", plugin=OURS)
    assert_no_crash(result)
    result.assert_outcomes(passed=2)
    assert theirs(pytester) == ["test_plain"]


@pytest.mark.usefixtures("peer")
@pytest.mark.parametrize("method", ["fork", "forkserver", "auto"])
@pytest.mark.parametrize("flag", [["--forked"], []])
def test_our_own_option_takes_over(pytester: pytest.Pytester, method: str, flag: list[str]) -> None:
    args = [*flag, f"--cuda-fork-isolate={method}"]
    result = run_session(pytester, *args, plugin=(*OURS, *THEIRS))
    assert_no_crash(result)
    result.assert_outcomes(passed=2)
    assert not theirs(pytester)
    assert isolated(pytester) == {"plain", "marked"}


@pytest.mark.usefixtures("peer")
def test_our_option_at_none_asks_for_nothing(pytester: pytest.Pytester) -> None:
    result = run_session(pytester, "--forked", "--cuda-fork-isolate=none", plugin=(*OURS, *THEIRS))
    result.assert_outcomes(passed=2)
    assert theirs(pytester) == ["test_plain", "test_marked"]
