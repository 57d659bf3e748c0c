"""The process that waits for a program writes its report, and goes when nothing of it runs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pytest_cudafork.compat import unpatched
from pytest_cudafork.observe.base.ledger import Ledger
from pytest_cudafork.observe.handed_on import WatchSettings
from pytest_cudafork.process.descendants import leftovers
from pytest_cudafork.programs import waiter
from pytest_cudafork.programs.own_ledger import new_ledger


def wait_for_a_program(report: Path, folder: Path) -> None:
    """Start a program, and wait for it as the waiter does, with its ledger in a folder."""
    ledger = new_ledger(contextlib.ExitStack(), str(folder))
    process = subprocess.Popen([sys.executable, "-c", "pass"], stdin=subprocess.DEVNULL)
    pidfd = os.pidfd_open(process.pid)
    Ledger(ledger).append("process", argv=["python"], ppid=1)
    text = WatchSettings(ledger, "absent", "poison").to_text()
    began = time.monotonic() - 100
    words = [str(report), text, bytes(16).hex(), str(os.getpid()), str(pidfd), str(began)]
    waiter.main([*words, "python", "x.py"])
    os.close(pidfd)
    assert process.wait(0) == 0  # it was waited for
    assert not os.path.exists(os.path.dirname(ledger))


@pytest.mark.parametrize("name", ["report.json", "report.txt"])
def test_the_report_is_written_at_the_end_and_once_more_at_the_last_end(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / name
    ignored: list[Any] = []
    monkeypatch.setattr(unpatched.signal, "signal", lambda number, how: ignored.append(number))
    monkeypatch.setattr(leftovers, "forget_mark", lambda: None)
    first_report: list[str] = []
    # A daemon that runs when the program has ended, and still at the second look.
    looks = iter([[os.getpid()], [os.getpid()], [], []])
    monkeypatch.setattr(leftovers, "busy_processes", lambda cookie: next(looks))
    monkeypatch.setattr(
        unpatched.time, "sleep", lambda seconds: first_report.append(report.read_text())
    )
    wait_for_a_program(report, tmp_path)
    assert ignored == list(waiter._DEADLY)
    assert len(first_report) == 1
    if name.endswith(".json"):
        assert len(json.loads(first_report[0])["running"]) == 1
        told = json.loads(report.read_text())
        assert (told["running"], told["command"]) == ([], ["python", "x.py"])
        assert told["seconds"] >= 100
    else:
        assert "still running" in first_report[0]
        assert "still running" not in report.read_text()


@pytest.mark.parametrize("name", ["report.json", "report"])
def test_a_report_whose_folder_has_gone_is_written_among_temporary_files(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpatched.signal, "signal", lambda number, how: None)
    monkeypatch.setattr(leftovers, "forget_mark", lambda: None)
    monkeypatch.setattr(leftovers, "busy_processes", lambda cookie: [])
    before = os.umask(0o022)
    try:
        wait_for_a_program(tmp_path / "gone" / name, tmp_path)
    finally:
        os.umask(before)
    (kept,) = tmp_path.iterdir()
    assert re.fullmatch(rf"pytest-cudafork-run-{os.getpid()}-\w{{16}}(\.json)?", kept.name)
    assert kept.suffix == Path(name).suffix
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    text = kept.read_text()
    assert json.loads(text)["command"] if kept.suffix else "no touch of CUDA was seen" in text
