"""What real sessions write for other programs, and what other plugins are told of them."""

from __future__ import annotations

import json
import os
import re
import xml.etree.ElementTree as ElementTree

import pytest

from tests.support.documents import read_document, read_sarif
from tests.support.sessions import check, module
from tests.support.trace_events import read_trace

TESTS = module(
    """
def test_touches():
    touch()

def test_forks():
    os.fork()

@pytest.mark.cuda_isolated(method="spawn")
def test_isolated():
    touch()

@pytest.mark.xfail
def test_expected():
    raise ValueError
"""
)
LINE = TESTS.strip().partition("def test_forks")[0].count("\n") - 1
"""Of the touch in the first test."""
PLUGIN = """
seen = []

def pytest_cudafork_touch(config, touch, nodeid):
    seen.append(nodeid)
    assert "test_isolated" not in nodeid, "of one that is broken"

def pytest_cudafork_isolate(item):
    return "spawn" if item.name == "test_expected" else None

def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"told of {sorted(seen)}")
"""


@pytest.mark.slow
@pytest.mark.parametrize("xdist", [False, True], ids=["alone", "xdist"])
def test_all_that_a_session_writes(pytester: pytest.Pytester, *, xdist: bool) -> None:
    pytester.makepyfile(test_it=TESTS)
    pytester.makeconftest(PLUGIN)
    summary = pytester.path / "summary.md"
    result = check(
        pytester,
        "fork",
        *(("-p", "xdist", "-n1") if xdist else ()),
        *("--cuda-fork-json=s.json", "--cuda-fork-sarif=s.sarif", "--junitxml=j.xml"),
        "--cuda-fork-trace=t.json",
        "--cuda-fork-github",
        env={
            "GITHUB_ACTIONS": "true",
            "GITHUB_STEP_SUMMARY": str(summary),
            "GITHUB_WORKSPACE": str(pytester.path),
        },
    )
    assert result.ret == 1
    out = result.stdout.str()
    assert "INTERNALERROR" not in out

    made = read_document(pytester.path / "s.json", "session")
    assert (made["exit_status"], made["good"]) == (1, False)
    assert {each["test"].partition("::")[2]: each["outcome"] for each in made["tests"]} == {
        "test_touches": "passed",
        "test_forks": "failed",
        "test_isolated": "passed",
        "test_expected": "xfailed",
    }
    methods = {each["test"].partition("::")[2]: each["isolation"] for each in made["tests"]}
    assert [name for name, way in methods.items() if way is not None] == [
        "test_isolated",
        "test_expected",
    ], "the latter because a plugin says so"
    (finding,) = made["check"]["findings"]
    assert finding["error"] == "CudaForkError"
    assert "was caught, without its name" not in finding["story"], "pytest made the failure of it"
    touches = [each for each in made["check"]["touches"] if "test_touches" in each["test"]]
    assert touches[0]["culprit"] == f"{pytester.path}/test_it.py:{LINE}"

    (problem, *notes) = read_sarif(json.loads((pytester.path / "s.sarif").read_text()))
    assert notes == []
    place = problem["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "test_it.py"
    assert place["region"] == {"startLine": LINE}

    commands = [each for each in result.outlines if each.startswith("::")]
    (command,) = commands
    assert command.startswith(f"::error file=test_it.py,line={LINE},title=")
    assert "<summary>error: fork refused at test_it.py" in summary.read_text()

    cases = {
        case.get("name"): {each.get("name"): each.get("value") for each in case.iter("property")}
        for case in ElementTree.parse(pytester.path / "j.xml").iter("testcase")
    }
    culprit = f"{pytester.path}/test_it.py:{LINE}"
    assert cases["test_forks"] == {"cudafork_error": "CudaForkError", "cudafork_culprit": culprit}
    assert cases["test_isolated"]["cudafork_isolation"] == "spawn"

    events = read_trace(pytester.path / "t.json")
    names = {event["pid"]: event["args"]["name"] for event in events if event["ph"] == "M"
             and event["name"] == "process_name"}  # fmt: skip
    rows = {event["name"]: names[event["pid"]] for event in events if event["ph"] == "X"}
    assert rows["session"] == "pytest"
    assert rows["test_it.py::test_forks (call)"] == ("pytest, worker gw0" if xdist else "pytest")
    isolated = "test_it.py::test_isolated"
    assert rows[f"{isolated} (call)"] == f"isolated by spawn: {isolated}"
    (fork,) = [event for event in events if event["name"] == "fork: guarded"]
    assert names[fork["pid"]] == rows["test_it.py::test_forks (call)"]
    (touch,) = [e for e in events if e.get("args", {}).get("test") == f"{isolated} (call)"]
    assert names[touch["pid"]] == f"isolated by spawn: {isolated}"

    assert "told of ['test_it.py::test_isolated', 'test_it.py::test_touches']" in out
    broken = "pytest_cudafork_touch raised AssertionError: of one that is broken"
    assert broken in out, "told once, in the process of the session"
    assert made["hook_errors"][0]["hook"] == "pytest_cudafork_touch"


@pytest.mark.slow
@pytest.mark.parametrize("xdist", [False, True], ids=["alone", "xdist"])
def test_hooks_are_called_in_the_process_of_the_session_alone(
    pytester: pytest.Pytester, *, xdist: bool
) -> None:
    pytester.makepyfile(
        test_it=module(
            "".join(
                f"@pytest.mark.cuda_isolated(method={method!r})\n"
                f"def test_{method}():\n    touch()\n"
                for method in ("fork", "forkserver", "spawn")
            )
        )
    )
    pytester.makeconftest(
        """
        import os

        def pytest_cudafork_touch(touch, nodeid):
            with open(os.environ["CALLED"], "a") as file:
                print(os.getpid(), touch.pid, nodeid.partition("::")[2], file=file)

        def pytest_terminal_summary(terminalreporter):
            terminalreporter.write_line(f"the session is {os.getpid()}")
        """
    )
    called = pytester.path / "called"
    workers = ("-p", "xdist", "-n1") if xdist else ()
    result = check(pytester, "fork", *workers, env={"CALLED": str(called)})
    result.assert_outcomes(passed=3)
    (session,) = re.findall(r"the session is (\d+)", result.stdout.str())
    calls = [line.split() for line in called.read_text().splitlines()]
    assert sorted(name for _, _, name in calls) == ["test_fork", "test_forkserver", "test_spawn"]
    assert {caller for caller, _, _ in calls} == {session}
    assert session not in {toucher for _, toucher, _ in calls}


@pytest.mark.parametrize("service", ["GITHUB_ACTIONS", "BUILDKITE"])
def test_failures_are_before_what_a_ci_service_folds(
    pytester: pytest.Pytester, service: str
) -> None:
    tests = "\n".join(
        f"def test_touches_{n}():\n    touch()\n\ndef test_forks_{n}():\n    os.fork()\n"
        for n in range(20)
    )
    pytester.makepyfile(test_it=module(tests))
    environment = {"GITHUB_ACTIONS": "", "BUILDKITE": "", service: "true"}
    result = check(pytester, "fork", "-v", env=environment)
    result.assert_outcomes(passed=20, failed=20)
    begins = "::group::" if service == "GITHUB_ACTIONS" else "--- "
    out = result.stdout.str()
    assert out.count(f"\n{begins}") == 1
    before = out.partition(f"\n{begins}")[0]
    for n in range(20):
        assert "CudaForkError: fork refused" in before.partition(f" test_forks_{n} __")[2]


@pytest.mark.slow
def test_a_hook_that_raises_fails_a_session_of_good_tests(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=module("def test_touches():\n    touch()\ndef test_b(): pass\n"))
    pytester.makeconftest(
        """
        import pytest
        def pytest_cudafork_touch(touch):
            pytest.fail("not so")
        def pytest_cudafork_isolate(item):
            if item.name == "test_b":
                raise KeyError("which?")
        """
    )
    result = check(pytester, "fork")
    assert result.ret == 1
    result.assert_outcomes(passed=1, errors=1)
    out = result.stdout.str()
    assert "INTERNALERROR" not in out
    assert "conftest.py:3: pytest_cudafork_touch raised Failed: not so" in out
    assert "test_b: " in out
    assert "conftest.py:6: pytest_cudafork_isolate raised KeyError: 'which?'" in out


@pytest.mark.slow
def test_an_interrupted_session_writes_what_it_has_also_of_files_without_a_readable_name(
    pytester: pytest.Pytester,
) -> None:
    name = os.fsdecode(b"test_\xfe.py")
    (pytester.path / name).write_text(
        module(
            "def test_forks():\n    touch()\n    os.fork()\n"
            "def test_interrupted():\n    raise KeyboardInterrupt\n"
        )
    )
    result = check(
        pytester,
        "fork",
        *("-p", "no:cacheprovider"),  # pytest's own, which cannot write such a name
        *("--cuda-fork-json=s.json", "--cuda-fork-sarif=s.sarif", "--cuda-fork-trace=t.json"),
        env={"PYTHONIOENCODING": "utf-8:backslashreplace"},
    )
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert "INTERNALERROR" not in result.stdout.str()
    made = read_document(pytester.path / "s.json", "session")
    assert (made["good"], made["stopped"]) == (False, "KeyboardInterrupt")
    assert made["counts"] == {"failed": 1, "unfinished": 1}
    assert [each["test"] for each in made["tests"]] == [
        "test_\\udcfe.py::test_forks",
        "test_\\udcfe.py::test_interrupted",
    ]
    (problem, *_) = read_sarif(json.loads((pytester.path / "s.sarif").read_text()))
    place = problem["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "test_%FE.py"
    assert read_trace(pytester.path / "t.json")


@pytest.mark.slow
def test_a_session_whose_workers_died_before_all_tests_ran_says_so(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        import os
        import pytest

        @pytest.mark.parametrize("n", range(4))
        def test_dies(n):
            if n == 1:
                os._exit(9)
        """
    )
    check(
        pytester,
        "fork",
        *("-p", "xdist", "-n1", "--max-worker-restart=0"),
        *("--cuda-fork-json=s.json", "--cuda-fork-sarif=s.sarif"),
    )
    made = read_document(pytester.path / "s.json", "session")
    assert made["counts"] == {"passed": 1, "failed": 1}
    assert made["stopped"] == "worker gw0 crashed and worker restarting disabled"
    (run,) = json.loads((pytester.path / "s.sarif").read_text())["runs"]
    assert run["invocations"][0]["executionSuccessful"] is False
