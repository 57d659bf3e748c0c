"""The command ``run``: its statuses, and what it hands to the program."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from pytest_cudafork.observe.handed_on import WatchSettings
from pytest_cudafork.programs import run_command
from pytest_cudafork.programs.run_command import main
from pytest_cudafork.settings import environment


class Program:
    """Stands for a program that ends at once."""

    exitcode = 0
    given: dict[str, Any]

    def __init__(self, command: Any, env: dict[str, str], mark: bytes) -> None:
        Program.given = {"command": tuple(command), "env": env}
        self.pid = os.getpid()

    def wait(self) -> int:
        """Return how it ended."""
        return Program.exitcode

    def still_running(self) -> list[int]:
        """Return that it has left nothing."""
        return []


@pytest.fixture(autouse=True)
def program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Start nothing."""
    monkeypatch.setattr(run_command, "Foreground", Program)
    monkeypatch.setattr(Program, "exitcode", 0)
    monkeypatch.chdir(tmp_path)


def test_the_program_gets_the_watch_and_its_own_words(tmp_path: Path) -> None:
    assert main(["--guard", "--allow=pkg", "--device=none", "--report=r", "x.py", "--json"]) == 0
    assert Program.given["command"][-2:] == ("x.py", "--json")
    env = Program.given["env"]
    settings = WatchSettings.from_text(env[environment.WATCH])
    assert (settings.device, settings.level, settings.allow) == ("none", "fork", ("pkg",))
    assert env[environment.PHASE] == environment.PROGRAM
    assert not os.path.exists(settings.ledger)  # read, and removed
    assert "nothing was watched" in (tmp_path / "r").read_text()
    main(["--report=r", "--", "sh", "x"])
    assert Program.given["command"] == ("sh", "x")
    assert WatchSettings.from_text(Program.given["env"][environment.WATCH]).level == "poison"


def test_its_status_is_the_programs_unless_something_is_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert main(["--fail", "--report=r", "x.py"]) == 1  # nobody was watched
    monkeypatch.setattr(Program, "exitcode", 5)
    assert main(["--fail", "--report=r", "x.py"]) == 5
    assert main(["--report=r", "x.py"]) == 5


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (FileNotFoundError(2, "No such file", "x"), 127),
        (PermissionError(13, "no", "x"), 126),
        (ValueError("embedded null byte"), 126),
    ],
)
def test_a_program_that_cannot_begin(
    error: Exception,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(run_command, "Foreground", fail)
    assert main(["--", "x"]) == status
    assert capsys.readouterr().err.startswith("pytest-cudafork run: x: ")


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("app.py", "no: a Python script is run without --: run app.py"),
        ("sub/my app.py", "no: a Python script is run without --: run 'sub/my app.py'"),
        ("start", "no: the one in this folder is ./start"),
        ("./start", "no"),
        ("sub", "no"),
        ("a\0b", "no"),
    ],
)
def test_a_file_that_is_here_and_no_program_is_told_how_to_run(
    program: str,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("app.py", "sub/my app.py", "start"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    for error, status in ((FileNotFoundError(2, "no"), 127), (ValueError("no"), 126)):
        monkeypatch.setattr(run_command, "Foreground", Mock(side_effect=error))
        assert main(["--", program]) == status
        assert capsys.readouterr().err == f"pytest-cudafork run: {program}: {told}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--device=tpu", "x.py"], "--device: 'tpu' is not a device"),
        (["--report=no/r", "x.py"], "--report: "),
        (["--ledger=other", "x.py"], "--ledger: "),
        (["--ledger=no/l", "x.py"], "the ledger cannot be written"),
        ([], "there is no program to run"),
    ],
)
def test_wrong_arguments_run_nothing(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other").write_text("somebody's")
    Program.given = {}
    assert main(words) == 2
    assert said in capsys.readouterr().err
    assert Program.given == {}


def test_help_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "--report FILE" in capsys.readouterr().out
