"""A program in the foreground: its end is this one's, and signals are for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.compat import unpatched
from pytest_cudafork.programs.foreground import Foreground, end_like
from tests.support.programs import environment, wait_until

MARK = os.urandom(16)


@pytest.fixture(autouse=True)
def signals_are_as_before() -> Any:
    """Nothing is left blocked, and SIGCHLD is handled as before."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.getsignal(signal.SIGCHLD)
    yield
    assert (
        signal.pthread_sigmask(signal.SIG_BLOCK, []),
        signal.getsignal(signal.SIGCHLD),
    ) == before


def end_of(script: str) -> int:
    """Run a shell script in the foreground of this process."""
    return Foreground(["sh", "-c", script], os.environ, MARK).wait()


def test_the_exit_code_says_how_it_ended() -> None:
    assert end_of("exit 0") == 0
    assert end_of("exit 7") == 7
    assert end_of("kill -9 $$") == -9


def test_what_cannot_be_run_is_an_error() -> None:
    with pytest.raises(FileNotFoundError, match="nosuchprogram"):
        Foreground(["nosuchprogram"], os.environ, MARK)
    with pytest.raises(PermissionError):
        Foreground([os.devnull], os.environ, MARK)


def test_the_program_has_the_signals_of_a_shells_child() -> None:
    """Python ignores SIGPIPE, and exec would keep that."""
    script = (
        "import signal; mask = [n for n in signal.valid_signals() if 1 << n - 1 & int("
        "[l for l in open('/proc/self/status') if l.startswith('SigBlk')][0].split()[1], 16)];"
        "raise SystemExit(0 if not mask else 1)"
    )
    assert Foreground([sys.executable, "-c", script], os.environ, MARK).wait() == 0
    shell = "case $(grep SigIgn /proc/self/status) in *1000) exit 1;; *) exit 0;; esac"
    assert end_of(shell) == 0


def test_a_signal_from_a_terminal_is_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Foreground(["sh", "-c", "exec sleep 300"], os.environ, MARK)
    sent: list[tuple[int, int]] = []
    with monkeypatch.context() as patch:
        patch.setattr(unpatched.os, "kill", lambda pid, number: sent.append((pid, number)))
        passed: Any = program._pass_on
        passed(SimpleNamespace(si_signo=signal.SIGINT, si_code=0x80))
        assert sent == []
        passed(SimpleNamespace(si_signo=signal.SIGINT, si_code=0))
        assert sent == [(program.pid, signal.SIGINT)]
        passed(SimpleNamespace(si_signo=signal.SIGCONT, si_code=0))  # it runs: nothing to continue
        assert len(sent) == 1
    os.kill(program.pid, signal.SIGKILL)
    assert program.wait() == -9


def test_a_signal_while_it_runs_is_passed_on(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    script = f"trap 'exit 9' USR1; : > {ready}; while :; do sleep 0.05; done"
    program = Foreground(["sh", "-c", script], os.environ, MARK)
    wait_until(ready.exists)
    # To this thread: another one, of a plugin, would not hold it back.
    signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
    assert program.wait() == 9


def test_it_stops_only_where_a_terminal_has_stopped_its_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = Foreground(["sh", "-c", "exec sleep 300"], os.environ, MARK)
    stops = [signal.SIGTSTP, signal.SIGSTOP]
    sent: list[int] = []
    with monkeypatch.context() as patch:

        def waitid(kind: int, pid: int, flags: int) -> Any:
            if not flags & os.WEXITED:  # what takes the change out of the queue
                return stops.pop(0)
            return SimpleNamespace(si_code=5, si_status=stops[0]) if stops else None

        patch.setattr(unpatched.os, "waitid", waitid)
        patch.setattr(unpatched.os, "kill", lambda pid, number: sent.append(number))
        assert program._look() is None
    assert sent == [signal.SIGSTOP]
    os.kill(program.pid, signal.SIGKILL)
    assert program.wait() == -9


def test_it_stops_with_its_program_and_goes_on_with_it() -> None:
    code = (
        "import os\n"
        "from pytest_cudafork.programs.foreground import Foreground\n"
        "p = Foreground(['sh', '-c', 'kill -TSTP $$; exit 6'], os.environ, bytes(16))\n"
        "raise SystemExit(p.wait())\n"
    )
    # A group of its own, as a shell gives it: the kernel stops no group that nobody looks after.
    with subprocess.Popen(
        [sys.executable, "-c", code], env=environment(), preexec_fn=os.setpgrp
    ) as process:
        status = os.waitpid(process.pid, os.WUNTRACED)[1]
        assert os.WIFSTOPPED(status)
        process.send_signal(signal.SIGCONT)
        assert process.wait(120) == 6


def test_a_descendant_that_runs_on_is_found() -> None:
    program = Foreground(["sh", "-c", "sleep 300 >&- 2>&- & exit 0"], os.environ, MARK)
    assert program.wait() == 0
    (left,) = program.still_running()
    os.kill(left, signal.SIGKILL)
    wait_until(lambda: not program.still_running())


def test_this_process_ends_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    assert end_like(5) == 5
    done: list[Any] = []
    monkeypatch.setattr(unpatched.os, "kill", lambda pid, number: done.append(number))
    monkeypatch.setattr(unpatched.signal, "signal", lambda *arguments: None)
    monkeypatch.setattr(unpatched.signal, "pthread_sigmask", lambda *arguments: None)
    monkeypatch.setattr(unpatched.resource, "setrlimit", lambda *arguments: done.append("core"))
    assert end_like(-signal.SIGSEGV) == 128 + signal.SIGSEGV  # the first process of a container
    assert done == ["core", signal.SIGSEGV]
