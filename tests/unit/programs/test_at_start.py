"""The variable that watches what others start: what begins in the program, and what beside it."""

from __future__ import annotations

import os
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from pytest_cudafork.check import watch as watches
from pytest_cudafork.compat import unpatched
from pytest_cudafork.observe.handed_on import WatchSettings
from pytest_cudafork.process.descendants import leftovers
from pytest_cudafork.programs import at_start
from pytest_cudafork.settings import environment
from tests.support.programs import environment as clean_environment
from tests.support.programs import wait_until


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """What was started and begun, of which nothing is: this process goes on unwatched."""
    seen: list[Any] = []
    monkeypatch.setattr(os, "environ", clean_environment())
    monkeypatch.setattr(environment, "environ", os.environ)
    monkeypatch.setattr(unpatched.os, "environ", os.environ)
    monkeypatch.setattr(at_start, "_start_waiter", lambda *words: seen.append(words))
    monkeypatch.setattr(watches, "begin_inherited", lambda: seen.append("begun"))
    monkeypatch.setattr(leftovers, "mark_process", lambda mark: seen.append(mark))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    return seen


def test_the_program_begins_a_watch_like_one_that_it_inherits(
    started: list[Any], tmp_path: Path
) -> None:
    environment.put(environment.RUN, f"{tmp_path}/%p.txt")
    at_start.begin()
    report = tmp_path / f"{os.getpid()}.txt"
    assert report.read_text() == ""
    (told, settings, mark), marked, begun = started
    assert (told, mark, begun) == (str(report), marked, "begun")
    assert WatchSettings.from_text(environment.value(environment.WATCH)) == settings
    assert environment.value(environment.PHASE) == environment.PROGRAM
    assert Path(settings.ledger).is_file()  # the waiter reads and removes it
    # Nobody else does, when this process has gone.
    assert "temporary" not in Path(settings.ledger).read_text()
    at_start.begin()  # a child of it, by exec
    assert len(started) == 3


def test_a_report_that_cannot_be_written_is_told_and_stops_nothing(
    started: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environment.put(environment.RUN, f"{tmp_path}/no/report")
    at_start.begin()
    assert started == []
    assert f"{environment.RUN}: no watch: " in capsys.readouterr().err
    assert not environment.is_set(environment.WATCH)
    assert environment.value(environment.RUN) == ""  # nobody tells it again


def test_a_program_is_not_written_over(
    started: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "serve.py"
    program.write_text("pass")
    environment.put(environment.RUN, str(program))
    at_start.begin()
    assert (started, program.read_text()) == ([], "pass")
    assert "'serve.py' is a Python file" in capsys.readouterr().err.replace(f"{tmp_path}/", "")


def test_nothing_is_left_where_no_process_can_be_had(
    started: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*words: object) -> None:
        raise OSError("no process")

    monkeypatch.setattr(at_start, "_start_waiter", fail)
    environment.put(environment.RUN, f"{tmp_path}/report")
    at_start.begin()
    assert list((tmp_path / "tmp").iterdir()) == []
    assert "no process" in capsys.readouterr().err


def test_the_waiter_is_started_as_nobodys_child(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It holds nothing that the program holds: whoever waits for the end of a pipe has it."""
    told = tmp_path / "told"
    code = (
        "import os, sys; fds = os.listdir('/proc/self/fd'); "
        "words = len(fds), os.getsid(0) == os.getpid(), sys.argv[2]; "
        f"open({str(told)!r}, 'w').write(' '.join(map(str, words)))"
    )
    monkeypatch.setattr(at_start, "_CODE", code)
    read_fd, write_fd = os.pipe()
    os.set_inheritable(write_fd, True)
    settings = WatchSettings("/x/ledger", "absent", "poison")
    at_start._start_waiter("/x/report", settings, bytes(16))
    os.close(write_fd)
    assert os.read(read_fd, 1) == b""  # at the latest when that has ended
    os.close(read_fd)
    wait_until(lambda: told.exists() and told.read_text())
    number, leads, report = told.read_text().split()
    assert (number, leads, report) == ("5", "False", "/x/report")  # streams, its pidfd, the list


def test_a_program_with_more_rights_than_who_started_it_obeys_no_variable(
    started: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment.put(environment.RUN, f"{tmp_path}/report")
    monkeypatch.setattr(at_start, "_has_more_rights", lambda: True)
    at_start.begin()
    assert started == []
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize("secure", [0, 1])
def test_the_kernel_says_whether_a_program_has_more_rights(secure: int, tmp_path: Path) -> None:
    vector = tmp_path / "auxv"
    values = [(11, 1000), (23, secure), (6, 4096), (0, 0)]
    vector.write_bytes(b"".join(struct.pack("@LL", *pair) for pair in values))
    assert at_start._has_more_rights(str(vector)) is bool(secure)
    assert not at_start._has_more_rights()
    assert not at_start._has_more_rights(str(tmp_path / "none"))  # then by its user


def test_a_program_without_an_interpreter_of_its_own_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one is that has Python built in."""
    monkeypatch.setattr(sys, "executable", "")
    settings = WatchSettings("/x/ledger", "absent", "poison")
    with pytest.raises(RuntimeError, match=r"sys\.executable names none"):
        at_start._start_waiter("/x/report", settings, bytes(16))
