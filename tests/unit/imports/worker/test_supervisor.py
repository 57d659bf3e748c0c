"""Tests of the process between an audit and a fresh interpreter, called in this process."""

from __future__ import annotations

import os
import signal
import sys
from types import SimpleNamespace

import pytest

from pytest_cudafork.imports.worker import supervisor


@pytest.mark.parametrize(
    ("code", "status"),
    [("raise SystemExit(3)", b"3\n"), ("import os; os.kill(os.getpid(), 9)", b"-9\n")],
)
def test_the_exit_status_of_the_command_is_written(code: str, status: bytes) -> None:
    former = signal.getsignal(signal.SIGUSR1)
    read, write = os.pipe()
    try:
        supervisor.main(write, [signal.SIGUSR1], [sys.executable, "-S", "-c", code])
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
        assert os.read(read, 100) == status
    finally:
        signal.signal(signal.SIGUSR1, former)
        os.close(read)
        os.close(write)


def test_the_command_is_ended_when_nobody_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.close(read)
    written: list[bytes] = []
    names = {**vars(os), "write": lambda fd, data: written.append(data)}
    monkeypatch.setattr(supervisor, "os", SimpleNamespace(**names))  # other threads write, too
    code = "import time; time.sleep(100)"
    supervisor.main(write, [], [sys.executable, "-S", "-c", code])
    assert written == [b"-9\n"]
    os.close(write)
