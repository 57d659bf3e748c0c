"""Tests of ``python -m pytest_cudafork`` without a process: which command gets which arguments."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_cudafork import __main__
from pytest_cudafork.attach import command_line as attach
from pytest_cudafork.doctor import command_line as doctor
from pytest_cudafork.explain import command_line as explain
from pytest_cudafork.file_worker import command_line as file_worker
from pytest_cudafork.imports import command_line
from pytest_cudafork.page import command as html
from pytest_cudafork.programs import run_command
from pytest_cudafork.report import merge_command

COMMANDS = ("run", "explain", "imports", "attach", "doctor", "merge", "html", "fileworker")


@pytest.fixture(autouse=True)
def _a_collector_as_before() -> Iterator[None]:
    """The command turns the collector off, as its process is short."""
    collects = gc.isenabled()
    yield
    if collects:
        gc.enable()


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_goes_to_stdout(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main([flag]) == 0
    out, err = capsys.readouterr()
    assert (out[:6], err) == ("usage:", "")
    named = [line.split()[0] for line in out.splitlines() if line[:2] == "  " and line[2] != " "]
    assert named == list(COMMANDS)


@pytest.mark.parametrize(
    ("args", "error"),
    [
        ([], "usage: "),
        (["import"], "python -m pytest_cudafork: error: there is no command 'import'\nusage: "),
        (["-x", "imports"], "python -m pytest_cudafork: error: there is no command '-x'\nusage: "),
    ],
)
def test_no_command_or_an_unknown_one_is_an_error_on_stderr(
    args: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert __main__.main(args) == 2
    out, err = capsys.readouterr()
    assert (out, err[: len(error)]) == ("", error)


def test_the_command_gets_the_arguments_behind_it_and_gives_the_status(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[list[str]] = []

    def main(args: list[str]) -> int:
        given.append(args)
        return 7

    monkeypatch.setattr(command_line, "main", main)
    monkeypatch.setattr(file_worker, "main", main)
    monkeypatch.setattr(merge_command, "main", main)
    monkeypatch.setattr(doctor, "main", main)
    monkeypatch.setattr(attach, "main", main)
    assert __main__.main(["doctor", "--json"]) == 7
    assert __main__.main(["attach", "12"]) == 7
    assert given == [["--json"], ["12"]]
    given.clear()
    monkeypatch.setattr(explain, "main", main)
    monkeypatch.setattr(html, "main", main)
    monkeypatch.setattr(run_command, "main", main)
    assert __main__.main(["merge", "one", "two"]) == 7
    assert given.pop() == ["one", "two"]
    assert __main__.main(["run", "--fail", "x.py", "-v"]) == 7
    assert given.pop() == ["--fail", "x.py", "-v"]
    assert __main__.main(["explain", "log"]) == 7
    assert given.pop() == ["log"]
    assert __main__.main(["html", "s.json", "s.html"]) == 7
    assert given.pop() == ["s.json", "s.html"]
    monkeypatch.setattr(sys, "argv", ["pytest_cudafork", "imports", "pkg", "--jobs=2"])
    assert __main__.main() == 7
    assert __main__.main(["imports"]) == 7
    assert __main__.main(["fileworker", "--result-fd=3"]) == 7
    assert given == [["pkg", "--jobs=2"], [], ["--result-fd=3"]]


@pytest.mark.parametrize(("error", "status"), [(errno.EPIPE, 141), (errno.ENOSPC, 2)])
def test_an_output_that_nobody_takes_is_no_traceback(
    error: int, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(args: list[str]) -> int:
        raise OSError(error, "as it is said")

    monkeypatch.setattr(explain, "main", fails)
    with open(tmp_path / "stdout", "w") as stdout, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stdout)
        assert __main__.main(["explain"]) == status
    monkeypatch.setattr(explain, "main", lambda args: os.open(tmp_path, os.O_WRONLY))
    with pytest.raises(IsADirectoryError):  # another error is not about the output
        __main__.main(["explain"])


def test_who_has_closed_the_streams_gets_the_status(monkeypatch: pytest.MonkeyPatch) -> None:
    def writes(args: list[str]) -> int:
        sys.stdout.write("a")
        sys.stderr.write("b")
        return 1

    monkeypatch.setattr(merge_command, "main", writes)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", None)
        patch.setattr(sys, "stderr", None)
        assert __main__.main(["merge", "one"]) == 1
        patch.setattr(sys, "stdout", None)
        assert __main__.main(["--help"]) == 0


def test_no_file_of_ours_gets_the_number_of_a_closed_stream() -> None:
    """A child of the audit is given its streams, and a socket of that number would be lost."""
    code = (
        "import os, sys\n"
        "from pytest_cudafork import __main__\n"
        "from pytest_cudafork.report import merge_command\n"
        "def main(args):\n"
        "    fd = os.open(os.devnull, os.O_RDONLY)\n"
        "    return fd if all(map(os.get_inheritable, range(3))) else 99\n"
        "merge_command.main = main\n"
        "sys.exit(__main__.main(['merge']))\n"
    )
    ended = subprocess.run(
        ["/bin/sh", "-c", '"$0" -c "$1" <&- >&- 2>&-', sys.executable, code], check=False
    )
    assert ended.returncode == 3
