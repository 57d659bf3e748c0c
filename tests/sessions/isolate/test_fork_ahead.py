"""Forks that are made ahead of their test: the right process for the right test, or none."""

from __future__ import annotations

import os

import pytest

from tests.support.isolation import is_gone, with_cores
from tests.support.sessions import run_session

pytestmark = pytest.mark.fresh_children("children and descriptors of a session are counted")

PIDS = """
    import os
    import pytest

    def note(text):
        with open("notes", "a") as file:
            file.write(f"{text} {os.getpid()} {os.getppid()}\\n")
"""


@pytest.fixture(autouse=True)
def _no_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    # one that wraps the protocol of tests turns off what is tested here
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "pytest_cudafork.plugin")


def _notes(pytester: pytest.Pytester) -> list[list[str]]:
    text = (pytester.path / "notes").read_text(encoding="utf-8")
    return [line.split() for line in text.splitlines()]


def test_each_test_has_a_process_of_its_own_in_the_order_of_the_session(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        PIDS
        + """
    @pytest.mark.parametrize("i", range(5))
    def test_a(i):
        note(i)
    """
    )
    run_session(pytester, "--cuda-fork-isolate=fork").assert_outcomes(passed=5)
    notes = _notes(pytester)
    assert [note[0] for note in notes] == list("01234")
    assert len({note[1] for note in notes}) == 5
    assert len({note[2] for note in notes}) == 1


@pytest.mark.parametrize("args", [("-x",), ("--maxfail=1",)], ids=str)
def test_a_process_whose_turn_does_not_come_is_ended(
    pytester: pytest.Pytester, args: tuple[str, ...]
) -> None:
    pytester.makeconftest(
        """
        import os, subprocess
        def pytest_unconfigure(config):
            print("children:", open(f"/proc/self/task/{os.getpid()}/children").read().split())
        """
    )
    pytester.makepyfile(
        PIDS
        + """
    def test_fails():
        note("fails")
        assert 0

    def test_next():
        note("next")
    """
    )
    result = run_session(pytester, "--cuda-fork-isolate=fork", *args)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["children: []"])
    assert [note[0] for note in _notes(pytester)] == ["fails"]


@pytest.mark.parametrize("listens", [False, True])
def test_several_are_made_at_once_where_nothing_has_a_say_in_between(
    pytester: pytest.Pytester, listens: bool
) -> None:
    hook = "def pytest_runtest_logreport(): pass" if listens else ""
    pytester.makeconftest(
        f"""
        import os
        def children(pid):
            return open(f"/proc/{{pid}}/task/{{pid}}/children").read().split()
        def pytest_unconfigure(config):
            print("children:", children(os.getpid()))
        {hook}
        """
    )
    pytester.makepyfile(
        PIDS
        + f"""
    import time
    from conftest import children

    @pytest.mark.parametrize("i", range(9))
    def test_a(i):
        note(i)
        most = {2 if listens else 7}
        deadline = time.monotonic() + 120
        while i == 0 and len(children(os.getppid())) < most and time.monotonic() < deadline:
            time.sleep(0.01)
        if i == 0:
            assert len(children(os.getppid())) == most
        assert i < 2
    """
    )
    result = run_session(pytester, "--cuda-fork-isolate=fork", "-x")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["children: []"])
    assert [note[0] for note in _notes(pytester)] == ["0", "1", "2"]


def test_the_environment_is_that_of_its_turn(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import os
        def pytest_runtest_logreport(report):
            if report.when == "call":
                os.environ["SEEN"] = os.environ.get("SEEN", "") + "x"
                os.environ.pop("GONE", None)
                os.chdir("/")
        os.environ["GONE"] = "1"
        """
    )
    pytester.makepyfile(
        """
        import os
        def test_a():
            assert "SEEN" not in os.environ and "GONE" in os.environ
        def test_b():
            assert os.environ["SEEN"] == "x" and "GONE" not in os.environ and os.getcwd() == "/"
        """
    )
    run_session(pytester, "--cuda-fork-isolate=fork").assert_outcomes(passed=2)


def test_a_fixture_that_lives_in_the_parent_is_torn_down_before_the_next_fork(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        test_a="""
        import pytest
        LIVES = []

        @pytest.fixture(scope="module")
        def wide():
            LIVES.append(1)
            yield
            LIVES.clear()

        def test_here(wide):
            pass

        @pytest.mark.cuda_isolated(method="fork")
        def test_forked():
            assert LIVES
        """,
        test_b="""
        import pytest
        import test_a

        @pytest.mark.cuda_isolated(method="fork")
        def test_after_it():
            assert not test_a.LIVES
        """,
    )
    run_session(pytester, "test_a.py", "test_b.py").assert_outcomes(passed=3)


def test_one_that_dies_before_its_turn_is_replaced(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        PIDS
        + """
    import signal, time

    def test_kills_the_next():
        deadline = time.monotonic() + 120
        others = []
        while not others and time.monotonic() < deadline:
            path = f"/proc/{os.getppid()}/task/{os.getppid()}/children"
            others = [pid for pid in open(path).read().split() if int(pid) != os.getpid()]
            time.sleep(0.01)
        os.kill(int(others[0]), signal.SIGKILL)
        while ") Z" not in open(f"/proc/{others[0]}/stat").read():
            time.sleep(0.01)

    def test_victim():
        pass

    def test_last():
        note("last")
    """
    )
    run_session(pytester, "--cuda-fork-isolate=fork").assert_outcomes(passed=3)


def test_it_works_beside_other_methods_and_for_several_runs(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        PIDS
        + """
    @pytest.mark.parametrize("i", range(8))
    @pytest.mark.parametrize("j", range(2))
    def test_a(i, j):
        note(f"{i}-{j}")
    """
    )
    pytester.makeconftest(
        """
        import pytest
        METHODS = ["fork", "fork", "forkserver", "spawn", "fork", None, "fork", "fork"]
        def pytest_collection_modifyitems(items):
            for number, item in enumerate(items):
                method = METHODS[number % len(METHODS)]
                if method:
                    scope = "module" if number % 3 == 0 else "test"
                    item.add_marker(pytest.mark.cuda_isolated(method=method, scope=scope))
        """
    )
    run_session(pytester).assert_outcomes(passed=16)
    notes = _notes(pytester)
    assert len(notes) == 16
    assert all(is_gone(int(note[1])) for note in notes if note[1] != str(os.getpid()))


def test_nothing_of_the_test_before_is_in_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys
        import warnings
        import pytest

        @pytest.mark.filterwarnings("error")
        def test_a():
            pass

        def test_b():
            warnings.warn("mine")

        @pytest.mark.parametrize("i", range(3))
        def test_c(i):
            for line in range(200):
                print(i, line)
            assert 0
        """
    )
    # so many cores that a child that waits has time to practice
    pytester.makeconftest(with_cores(8))
    result = run_session(pytester, "--cuda-fork-isolate=fork")
    result.assert_outcomes(passed=2, failed=3, warnings=1)
    lines = result.stdout.lines
    for i in range(3):
        assert [line for line in lines if line.startswith(f"{i} ")] == [
            f"{i} {line}" for line in range(200)
        ]
    shown = run_session(pytester, "--cuda-fork-isolate=fork", "--setup-show")
    shown.stdout.no_fnmatch_line("*rehearsal*")


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_nothing_of_the_first_test_of_a_group_is_in_the_next(
    pytester: pytest.Pytester, method: str
) -> None:
    pytester.makepyfile(
        f"""
        import warnings
        import pytest

        pytestmark = pytest.mark.cuda_isolated(method={method!r}, scope="module")

        @pytest.mark.filterwarnings("error")
        def test_a():
            pass

        def test_b():
            warnings.warn("mine")
        """
    )
    run_session(pytester).assert_outcomes(passed=2, warnings=1)


def test_it_has_the_filters_of_warnings_that_tests_have_in_one_process(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeconftest(
        """
        import warnings

        def pytest_sessionstart():
            warnings.filterwarnings("ignore", "known")
        """
    )
    pytester.makepyfile(
        """
        import warnings
        import pytest

        @pytest.mark.parametrize("i", range(4))
        def test_a(i):
            with open("filters", "a") as file:
                print(warnings.filters, file=file)
            warnings.warn("known")
        """
    )
    shown = []
    for method in ("none", "fork"):
        result = run_session(pytester, f"--cuda-fork-isolate={method}")
        result.assert_outcomes(passed=4, warnings=0)
        path = pytester.path / "filters"
        shown.append(path.read_text(encoding="utf-8").splitlines())
        path.unlink()
    assert shown[0] == shown[1]


def test_a_wrapper_of_the_user_around_one_test_is_not_around_the_next(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeconftest(
        """
        import os, pytest
        from unittest import mock

        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_protocol(item):
            if item.get_closest_marker("patched"):
                with mock.patch.dict(os.environ), mock.patch("os.getlogin", lambda: "somebody"):
                    return (yield)
            return (yield)

        def pytest_configure(config):
            config.addinivalue_line("markers", "patched: with another name")
        """
    )
    pytester.makepyfile(
        """
        import os, pytest
        @pytest.mark.patched
        def test_a():
            assert os.getlogin() == "somebody"
        def test_b():
            assert os.getlogin.__module__ == "posix"
        """
    )
    run_session(pytester, "--cuda-fork-isolate=fork").assert_outcomes(passed=2)


def test_an_interrupt_while_a_fork_is_made_ahead_leaves_nobody(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import os, signal
        forks = []
        def before():
            forks.append(1)
            if len(forks) == 2:
                os.kill(os.getpid(), signal.SIGINT)
        os.register_at_fork(before=before)
        """
    )
    pytester.makepyfile(
        """
        import os, time
        def test_a():
            open("new", "w").write(str(os.getpid()))
            os.replace("new", "pid")  # it may be killed in between
            time.sleep(1000)
        def test_b():
            pass
        """
    )
    result = run_session(pytester, "--cuda-fork-isolate=fork")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    pid = pytester.path / "pid"
    assert not pid.exists() or is_gone(int(pid.read_text()))
