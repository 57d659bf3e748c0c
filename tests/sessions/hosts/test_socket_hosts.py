"""Workers of pytest-xdist that share nothing with the controller: no disk, no environment."""

from __future__ import annotations

import contextlib
import shutil
import sys
import textwrap
from collections.abc import Iterator

import pytest

from tests.support.documents import read_document
from tests.support.git_repository import GitRepository
from tests.support.imports import XDIST, needs_xdist
from tests.support.sessions import run_session
from tests.support.socket_hosts import Host, host

pytestmark = [
    needs_xdist,
    pytest.mark.skipif(sys.platform != "linux", reason="the check works on Linux"),
]

SUITE = {
    "pytest.ini": "[pytest]\ntestpaths = suite\n",
    "suite/touching.py": """
        import ctypes

        def touch():
            ctypes.CDLL("libcuda.so.1").cuInit(0)
    """,
    "suite/conftest.py": "",
    "suite/test_all.py": """
        import os, pathlib, tempfile, time
        import pytest
        from touching import touch

        HOST = os.environ.get("HOST", "the controller's")

        def test_where():
            assert f"/{HOST}/tmp" in tempfile.gettempdir()

        @pytest.mark.cuda_isolated(method="forkserver")
        def test_isolated():
            touch()

        @pytest.mark.gpus(1)
        def test_leased():
            meeting = pathlib.Path(os.environ["MEETING"])
            (meeting / HOST).touch()
            deadline = time.monotonic() + 120
            while len(list(meeting.iterdir())) < 2:
                assert time.monotonic() < deadline, "nobody else has a GPU at the same time"
                time.sleep(0.01)

        def test_touches_and_forks():
            touch()
            os.waitpid(os.fork() or os._exit(0), 0)
    """,
}


@contextlib.contextmanager
def two_hosts(pytester: pytest.Pytester, **files: str) -> Iterator[list[Host]]:
    """Two hosts with a copy of the suite each, beside the one in the controller's folder."""
    base = pytester.path.with_name(f"{pytester.path.name}_hosts")
    meeting = base / "meeting"
    meeting.mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        hosts = [
            stack.enter_context(host(base, name, {"MEETING": str(meeting)}))
            for name in ("one", "two")
        ]
        for folder in (pytester.path, *(each.folder for each in hosts)):
            for name, text in {**SUITE, **files}.items():
                path = folder / name
                path.parent.mkdir(exist_ok=True)
                path.write_text(textwrap.dedent(text))
        yield hosts
    shutil.rmtree(base)


def left_by(hosts: list[Host]) -> list[str]:
    """Return what is left in the temporary folders, but those of pytest itself."""
    names = [path.name for each in hosts for path in each.temporary.iterdir()]
    return [name for name in names if not name.startswith("pytest-of-")]


def run_there(
    pytester: pytest.Pytester, hosts: list[Host], *args: str, env: dict[str, str] | None = None
) -> pytest.RunResult:
    """Run all tests on each host."""
    specs = [part for each in hosts for part in ("--tx", each.spec)]
    result = run_session(
        pytester,
        *XDIST,
        "--dist=each",
        "--max-worker-restart=0",  # without it, a worker that cannot start is tried for ever
        *specs,
        *args,
        env=env,
    )
    assert "INTERNALERROR" not in result.stdout.str()
    return result


def test_what_hosts_see_comes_home(pytester: pytest.Pytester) -> None:
    files = ("--cuda-fork-ledger=all.jsonl", "--cuda-fork-json=s.json", "--cuda-fork-trace=t.json")
    with two_hosts(pytester) as hosts:
        result = run_there(
            pytester, hosts, "--cuda-fork-check", "--cuda-fork-device=phantom:sm_90", *files
        )
        assert left_by(hosts) == []
    result.assert_outcomes(passed=6, failed=2)
    result.stdout.fnmatch_lines([
        "*suite/touching.py:5: in touch*",
        "2 forks refused because of suite/touching.py:5*",
        "touches: 4 (0 at start-up, 0 at import or collection, 4 in tests), forks guarded: 2, *",
        "host 1: gw0 on *",
        "host 2: gw1 on *",
    ])  # fmt: skip
    document = read_document(pytester.path / "s.json", "session")
    touches = document["check"]["touches"]
    assert {touch["process"] >> 44 for touch in touches} == {1, 2}
    assert len({touch["process"] for touch in touches}) == 4
    source = str(pytester.path / "suite" / "touching.py")
    assert {touch["culprit"] for touch in touches} == {f"{source}:5"}, "files are those at home"
    assert {touch["test"].partition(" ")[0] for touch in touches} == {
        "suite/test_all.py::test_isolated", "suite/test_all.py::test_touches_and_forks"
    }  # fmt: skip
    trace = (pytester.path / "t.json").read_text()
    assert "0 of host 1" in trace
    assert "0 of host 2" in trace


def test_what_only_the_controller_knows_is_told_to_hosts(pytester: pytest.Pytester) -> None:
    """The check, by a variable, and the baseline, by a file; one host touches after its tests."""
    late = """
        import os
        from touching import touch

        def pytest_sessionfinish(session):
            if os.environ.get("HOST") == "two":
                touch()
    """
    line = "        def test_touches():\n            touch()\n"
    with two_hosts(
        pytester,
        **{
            "suite/conftest.py": late,
            "suite/test_all.py": "        from touching import touch\n\n" + line,
        },
    ) as hosts:
        known = pytester.path / "known.toml"
        known.write_text(
            '["suite/touching.py"]\n'
            '\'touch: touch: ctypes.CDLL("libcuda.so.1").cuInit(0)\' = "suite/test_all.py"\n'
        )
        env = {"PYTEST_CUDA_FORK_CHECK": "touch", "PYTEST_CUDA_FORK_DEVICE": "phantom:sm_90"}
        accepted = run_there(
            pytester, hosts, "--cuda-fork-baseline=known.toml", "-k", "test_touches", env=env
        )
        known.unlink()
        refused = run_there(pytester, hosts, env=env)
        assert left_by(hosts) == []
    accepted.assert_outcomes(passed=2)
    assert accepted.ret == pytest.ExitCode.OK
    refused.assert_outcomes(failed=2)
    refused.stdout.fnmatch_lines([
        "ERROR: *, too late to fail a test:",
        "not observable: host 1 (gw0 on *): the check began after the conftests, because *",
    ])  # fmt: skip


def test_a_host_that_is_lost_is_an_error(pytester: pytest.Pytester) -> None:
    test = """
        import os
        def test_dies():
            if os.environ["HOST"] == "two":
                os._exit(7)
    """
    with two_hosts(pytester, **{"suite/test_all.py": test}) as hosts:
        result = run_there(pytester, hosts, "--cuda-fork-check")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["ERROR: host 2 (gw1): what it saw last did not come home: *"])


@pytest.mark.parametrize("named_in", ["command line", "ini file"])
def test_an_audit_on_hosts_accepts_what_the_baseline_at_home_does(
    pytester: pytest.Pytester, named_in: str
) -> None:
    touch = 'import ctypes\nctypes.CDLL("libcuda.so.1").cuInit(0)\n'
    ini = "[pytest]\ntestpaths = suite\npythonpath = .\n"
    modules = {"pk/__init__.py": "", "pk/known.py": touch, "pk/new.py": touch}
    where = "cuda_fork_imports_baseline = known.toml\n"
    with two_hosts(pytester, **modules, **{"pytest.ini": ini}) as hosts:
        (pytester.path / "known.toml").write_text('[pk]\n"pk.known" = "pk/known.py:2"\n')
        args = ["--cuda-fork-imports-baseline=known.toml"]
        if named_in == "ini file":
            (pytester.path / "pytest.ini").write_text(ini + where)
            args = []
        result = run_there(
            pytester, hosts, "--cuda-fork-imports=pk", "--cuda-fork-device=phantom:sm_90", *args
        )
    result.assert_outcomes(passed=2, xfailed=2, failed=2)
    result.stdout.fnmatch_lines([
        "pk/known.py:2 (module body): *, all in the baseline",
        "pk/new.py:2 (module body): *",
    ])  # fmt: skip


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_what_a_change_reaches_is_told_to_hosts_that_have_no_repository(
    pytester: pytest.Pytester,
) -> None:
    ini = "[pytest]\ntestpaths = suite\npythonpath = .\n"
    modules = {"pk/__init__.py": "", "pk/one.py": "", "pk/two.py": ""}
    args = ("--cuda-fork-imports=pk", "--cuda-fork-imports-since=HEAD")
    with two_hosts(pytester, **modules, **{"pytest.ini": ini}) as hosts:
        made = GitRepository(pytester.path)
        made.write({".gitignore": "/*\n!/pk\n__pycache__\n"})
        made.commit("begin")
        first = run_there(pytester, hosts, *args)
        for folder in (pytester.path, *(each.folder for each in hosts)):
            (folder / "pk" / "one.py").write_text("edited = True")
        second = run_there(pytester, hosts, *args)
    first.assert_outcomes(passed=6)
    second.assert_outcomes(passed=2)
    second.stdout.fnmatch_lines(["since HEAD * 1 changed file, which 1 of 3 imports of pk *"])
