"""How a result is judged, and how it is told."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_cudafork.errors import ChildCrashed, ChildError, ChildExit, CudaForkError
from pytest_cudafork.observe.driver.probe import CudaState, Driver, Verdict
from pytest_cudafork.programs.deeds import read_deeds
from pytest_cudafork.programs.program import LeftProcess
from pytest_cudafork.programs.result import ScriptResult, command_name
from pytest_cudafork.settings import Level

INITIALIZED = CudaState(Verdict.INITIALIZED, Driver.INITIALIZED, None, None, "the driver says so")
BEGUN = {"k": "process", "id": "p", "pid": 10, "argv": ["python", "post.py"]}


def stack(line: int) -> list[list[Any]]:
    """Return a stack of one line of post.py."""
    return [["post.py", line, "main", 3]]


TOUCH = {"k": "touch", "id": "t", "pid": 10, "entry": "cuInit", "stack": stack(3)}
FORK = {
    "k": "fork",
    "id": "f",
    "pid": 10,
    "api": "os.fork",
    "verdict": "guarded",
    "stack": stack(5),
}


def result(*records: dict[str, Any], **fields: Any) -> ScriptResult:
    """Return the result of a script that went well, but for what is given."""
    values: dict[str, Any] = {
        "command": ("/bin/python", "post.py"),
        "environment": {
            "A": (None, "1"),
            "B": ("1", None),
            "_CUDAFORK_X": (None, "1"),
            "PYTHONPATH": (None, "x"),
        },
        "method": "spawn",
        "parent": INITIALIZED,
        "exitcode": 0,
        "stdout_bytes": b"",
        "stderr_bytes": b"",
        "seconds": 1.23,
        "left": (),
        "deeds": read_deeds(records or [BEGUN], 10, {}, Level.FORK, []),
        "simulated": False,
    }
    return ScriptResult(**{**values, **fields})


def test_a_result_with_nothing_wrong_is_returned() -> None:
    good = result()
    assert good.check() is good


def test_a_finding_is_told_first() -> None:
    bad = result(BEGUN, TOUCH, FORK, exitcode=1)
    assert len(bad.findings) == 1
    with pytest.raises(CudaForkError) as caught:
        bad.check()
    lines = str(caught.value).split("\n")
    assert lines[0] == (
        "fork refused at post.py:5: CUDA was initialized at post.py:3 (a call)"
        if "(a call)" in lines[0]
        else lines[0]
    )
    assert "post.py:5" in lines[0]
    assert "post.py:3" in lines[0]
    assert "That was in\n/bin/python post.py: exited with status 1" in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"exitcode": -11}, ChildCrashed),
        ({"exitcode": 3}, ChildExit),
        ({"exitcode": None}, ChildExit),
        ({"left": (LeftProcess(7, "sleep 100"),)}, ChildError),
    ],
)
def test_what_is_wrong_with_its_end_is_told(
    fields: dict[str, Any], error: type[ChildError]
) -> None:
    bad = result(**fields)
    bad.check_findings()
    with pytest.raises(error) as caught:
        bad.check()
    assert type(caught.value) is error
    assert str(caught.value) == str(bad)


def test_one_that_was_not_watched_is_not_good() -> None:
    with pytest.raises(ChildError, match="not observable:\n    the program's first process"):
        result({"k": "watch", "id": "w", "pid": 10}).check()


def test_it_is_told_whole() -> None:
    start = {"k": "start", "id": "s", "pid": 10, "method": "fork", "stack": stack(5)}
    told = str(
        result(
            BEGUN,
            TOUCH,
            FORK,
            start,
            left=(LeftProcess(7, "sleep 100"),),
            stdout_bytes=b"\xffsome\n" * 30,
            stderr_bytes=b"an error\x1b[31m",
        )
    ).split("\n")
    assert told[0] == "/bin/python post.py: exited with status 0 after 1.2 s"
    assert told[1].startswith("  start method: asked for: spawn; in force: ")
    assert told[2].startswith("  CUDA in the process that ran it: initialized (the driver says so)")
    assert told[3] == "  environment: A=1, B taken away, and what the watch needs"
    rest = "\n".join(told[4:])
    for line in (
        "  touches of CUDA:\n    post.py:3: ",
        "  forks:\n    post.py:5: refused\n",
        "  started by multiprocessing:\n    post.py:5: by fork\n",
        "  left running, and ended since:\n    7 sleep 100\n",
        "  stdout, its end:\n    \\xffsome\n",
        "  stderr:\n    an error",
    ):
        assert line in rest
    assert "\x1b" not in rest


def test_of_many_places_some_are_told() -> None:
    starts = [
        {"k": "start", "id": f"{n}", "pid": 10, "method": "fork", "stack": stack(n)}
        for n in range(1, 21)
    ]
    told = str(result(BEGUN, *starts))
    assert "post.py:8: by fork\n    ... and 12 more" in told


def test_a_command_goes_by_what_it_runs() -> None:
    assert command_name(("python", "post.py", "x")) == "post.py"
    assert command_name(("python", "-m", "pkg.mod", "x")) == "-m pkg.mod"
