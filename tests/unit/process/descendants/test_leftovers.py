"""Tests of finding and ending what a child leaves."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_cudafork.compat import unpatched
from pytest_cudafork.process.descendants import leftovers, process_state
from tests.support.isolation import is_gone


@pytest.fixture
def cookie() -> bytes:
    return os.urandom(16)


@pytest.fixture
def marked(cookie: bytes) -> Iterator[bool]:
    """Let this process wear the mark of the cookie while a test runs; whether it could be set."""
    before = resource.getrlimit(resource.RLIMIT_RTTIME)
    yield leftovers.mark_process(cookie)
    resource.setrlimit(resource.RLIMIT_RTTIME, before)


def fork_and_wait(reading: int, writing: int) -> int:
    """Fork a process that lives as long as this one has a pipe's end for writing open."""
    pid = os.fork()
    if pid == 0:
        try:
            os.close(writing)
            os.read(reading, 1)
        finally:
            os._exit(0)
    return pid


def test_a_process_wears_the_mark_of_its_cookie_and_of_no_other(
    cookie: bytes, marked: bool
) -> None:
    assert marked
    assert leftovers.is_marked(os.getpid(), cookie)
    assert not leftovers.is_marked(os.getpid(), os.urandom(16))
    assert not leftovers.is_marked(1 << 30, cookie)  # no such process
    assert leftovers.marked_processes([cookie]) == []  # the one that asks is left out


FORKS_AND_ENDS = """\
import os, sys, time
from pytest_cudafork.process.descendants.leftovers import mark_process
mark_process(bytes.fromhex(sys.argv[1]))
os.write(1, b"marked")
until = time.monotonic() + 60
while time.monotonic() < until:
    if os.fork():
        os._exit(0)
"""


@pytest.mark.slow
def test_one_that_forks_and_ends_again_and_again_is_found_and_ended(cookie: bytes) -> None:
    """As a daemon does twice: who looks at processes one by one sees each too late."""
    command = [sys.executable, "-c", FORKS_AND_ENDS, cookie.hex()]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert first.stdout.read(6) == b"marked"
        found = [leftovers.marked_processes([cookie]) for _ in range(20)]
        assert leftovers.end({cookie: first.pid}) == []
    assert all(found)
    assert leftovers.marked_processes([cookie]) == []


def test_what_only_tidies_up_is_not_busy(
    cookie: bytes, marked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert marked
    reading, writing = os.pipe()
    pid = fork_and_wait(reading, writing)
    try:
        assert leftovers.busy_processes(cookie) == [pid]
        monkeypatch.setattr(leftovers, "_seconds_left_to", lambda pid: 1.0)
        assert leftovers.busy_processes(cookie) == []
    finally:
        os.close(writing)
        os.close(reading)
        os.waitpid(pid, 0)


def test_one_that_begins_a_program_again_and_again_is_busy_at_each_look(
    cookie: bytes, marked: bool, tmp_path: Path
) -> None:
    """It has no command line each time, for a moment."""
    assert marked
    script = tmp_path / "again"
    script.write_text('#!/bin/sh\nexec "$0"\n')
    script.chmod(0o755)
    with subprocess.Popen([script]) as process:
        try:
            looks = [leftovers.busy_processes(cookie) for _ in range(200)]
        finally:
            process.kill()
    assert [found for found in looks if found != [process.pid]] == []


@pytest.mark.parametrize(
    ("has_memory", "then", "busy"), [(True, 0.0, 1), (True, 10.0, 0), (False, 0.0, 0)]
)
def test_one_without_a_command_line_is_waited_for_unless_it_ends(
    cookie: bytes,
    monkeypatch: pytest.MonkeyPatch,
    has_memory: bool,
    then: float,
    busy: int,
) -> None:
    seconds = [leftovers._EXEC_SECONDS, leftovers._EXEC_SECONDS, then]
    monkeypatch.setattr(leftovers, "_seconds_left_to", lambda pid: seconds.pop(0))
    monkeypatch.setattr(process_state, "has_memory", lambda pid: has_memory)
    monkeypatch.setattr(leftovers, "marked_processes", lambda cookies: [1])
    assert len(leftovers.busy_processes(cookie)) == busy


def test_one_that_has_no_command_line_for_long_is_busy(
    cookie: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "_EXEC_SECONDS", 0.05)
    monkeypatch.setattr(leftovers, "_seconds_left_to", lambda pid: 0.05)
    monkeypatch.setattr(leftovers, "marked_processes", lambda cookies: [os.getpid()])
    assert leftovers.busy_processes(cookie) == [os.getpid()]


def test_a_forked_process_wears_its_parents_mark_until_it_is_dead(
    cookie: bytes, marked: bool
) -> None:
    reading, writing = os.pipe()
    pid = fork_and_wait(reading, writing)
    try:
        assert leftovers.is_marked(pid, cookie)
        assert leftovers.marked_processes([cookie]) == [pid]
        assert pid in leftovers.descendants(os.getpid())
        assert leftovers.end({cookie: pid}) == []
        # killed, and not yet waited for: it is there, and does not live
        assert leftovers.is_marked(pid, cookie)
        assert leftovers.marked_processes([cookie]) == []
    finally:
        os.close(reading)
        os.close(writing)
        _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    assert pid not in leftovers.descendants(os.getpid())
    assert leftovers.descendants(pid) == []


def test_a_mark_that_is_forgotten_is_gone(cookie: bytes, marked: bool) -> None:
    assert marked
    leftovers.forget_mark()
    assert not leftovers.is_marked(os.getpid(), cookie)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may ask about processes of others")
def test_the_mark_of_another_users_process_is_read_without_a_capability(
    cookie: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> tuple[int, int]:
        raise PermissionError

    monkeypatch.setattr(unpatched.resource, "prlimit", refuse)
    with start(cookie, "os.setuid(65534)") as other:
        assert leftovers.is_marked(other.pid, cookie)
        assert not leftovers.is_marked(os.getpid(), cookie)
        assert not leftovers.is_marked(1 << 30, cookie)
        assert leftovers.marked_processes([cookie]) == [other.pid]
        assert leftovers.end({cookie: other.pid}) == []
        assert other.wait(300) == -signal.SIGKILL
    # whoever is not root could not end it
    monkeypatch.setattr(unpatched.os, "geteuid", lambda: 1000)
    assert not leftovers.is_marked(os.getpid(), cookie)


def test_a_process_that_does_not_end_is_named_in_the_end(
    cookie: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[int] = []
    monkeypatch.setattr(
        leftovers, "_KILL_SECONDS", 0.0
    )  # over when it has looked for the first time
    monkeypatch.setattr(leftovers, "marked_processes", lambda cookies: [1 << 30])
    monkeypatch.setattr(unpatched.os, "kill", lambda pid, number: killed.append(pid))
    assert leftovers.end({cookie: 1 << 30}) == [1 << 30]
    assert set(killed) == {1 << 30}


def test_a_process_that_this_one_may_not_end_is_not_waited_for(
    cookie: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[int] = []

    def kill(pid: int, number: int) -> None:
        killed.append(pid)
        raise PermissionError if pid == 1 << 30 else ProcessLookupError

    found = iter([[1 << 30, 1 << 29], [1 << 30]])
    monkeypatch.setattr(leftovers, "marked_processes", lambda cookies: next(found))
    monkeypatch.setattr(unpatched.os, "kill", kill)
    sweeper = leftovers.Sweeper()
    assert sweeper.sweep(now=True) == []
    sweeper.add(cookie, 1)
    assert sweeper.sweep(now=True) == [1 << 30]
    assert killed == [1 << 30, 1 << 29]


def test_a_mark_that_cannot_be_set_is_told(cookie: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(unpatched.resource, "setrlimit", refuse)
    assert not leftovers.mark_process(cookie)


def start(cookie: bytes, code: str) -> subprocess.Popen[str]:
    """Start a process that wears the mark of a cookie and runs the code."""
    text = "import os, sys, time; from pytest_cudafork.process.descendants import leftovers\n"
    text += f"leftovers.mark_process({cookie!r})\n{code}\nprint('up', flush=True); time.sleep(100)"
    process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.stdout.close()
    return process


def test_a_mark_is_inherited_and_other_marks_are_not_taken_for_it(cookie: bytes) -> None:
    other = os.urandom(16)
    code = "import subprocess; subprocess.Popen(['sleep', '100'])"
    with start(cookie, code) as one, start(other, "") as two:
        try:
            assert one.pid in leftovers.marked_processes([cookie])
            assert len(leftovers.marked_processes([cookie])) == 2
            assert leftovers.marked_processes([other]) == [two.pid]
            assert len(leftovers.marked_processes([cookie, other])) == 3
            assert leftovers.marked_processes([os.urandom(16)]) == []
            assert leftovers.end({cookie: one.pid}) == []
            assert one.wait(300) == -signal.SIGKILL
            assert leftovers.marked_processes([cookie, other]) == [two.pid]
            assert two.poll() is None
        finally:
            leftovers.end({cookie: one.pid, other: two.pid})


def test_a_sweep_ends_what_ended_children_have_left_and_nothing_else(
    cookie: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = os.urandom(16)
    monkeypatch.setattr(leftovers, "_SWEEP_SECONDS", 3600.0)
    sweeper = leftovers.Sweeper()
    over: list[bytes] = []
    with start(cookie, "") as one, start(other, "") as two:
        try:
            sweeper.sweep(now=True)
            assert (one.poll(), two.poll()) == (None, None)
            sweeper.add(cookie, one.pid)
            sweeper.sweep()
            assert one.wait(300) == -signal.SIGKILL
            sweeper.add(other, two.pid, lambda: over.append(other))
            sweeper.sweep()  # it was done just now
            assert two.poll() is None
            assert over == []
            sweeper.sweep(now=True)
            assert two.wait(300) == -signal.SIGKILL
            assert over == [other]
        finally:
            leftovers.end({cookie: one.pid, other: two.pid})


def test_a_process_that_tidies_up_is_given_the_time_for_it(
    cookie: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "_EXEC_SECONDS", 300.0)  # it may be about to begin its program
    monkeypatch.setattr(leftovers, "_TIDY_SECONDS", 300.0)
    monkeypatch.setattr(leftovers, "_KILL_SECONDS", 600.0)
    tidied = tmp_path / "tidied"
    script = tmp_path / "torch_shm_manager"
    script.write_text(f"#!/bin/sh\nread word\necho done >{tidied}\n")
    script.chmod(0o755)
    with start(
        cookie,
        # not to be named on the command line of the other
        f"import subprocess; name = {str(script).replace('torch', 'TORCH')!r}\n"
        "subprocess.Popen([name.replace('TORCH', 'torch')], stdin=subprocess.PIPE)",
    ) as process:
        assert leftovers.end({cookie: process.pid}) == []
        process.wait(300)
    assert tidied.read_text() == "done\n"


def test_one_that_does_not_go_by_itself_is_killed_in_the_end(
    cookie: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "_TIDY_SECONDS", 0.2)
    monkeypatch.setattr(leftovers, "_KILL_SECONDS", 600.0)
    script = tmp_path / "torch_shm_manager"
    script.write_text("#!/bin/sh\nsleep 1000\n")
    script.chmod(0o755)
    pidfile = tmp_path / "pid"
    with start(
        cookie,
        f"import subprocess; name = {str(script).replace('torch', 'TORCH')!r}\n"
        "p = subprocess.Popen([name.replace('TORCH', 'torch')])\n"
        f"open({str(pidfile)!r}, 'w').write(str(p.pid))",
    ) as process:
        assert leftovers.end({cookie: process.pid}) == []
        process.wait(300)
    assert is_gone(int(pidfile.read_text()))


def test_torchs_files_of_dead_processes_are_removed_and_no_others(
    cookie: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "_SHARED_MEMORY", str(tmp_path))
    for name in ("torch_123_4_5", "torch_1234_4_5", "torch_x", "psm_123_4"):
        (tmp_path / name).touch()
    leftovers.end({cookie: 123})
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"torch_1234_4_5", "torch_x", "psm_123_4"}


def test_a_limit_that_is_set_low_already_is_left_alone() -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_RTTIME, (5000, 5000))\n"
        "from pytest_cudafork.process.descendants import leftovers\n"
        "leftovers.mark_process(bytes(16))\n"
        "print(resource.getrlimit(resource.RLIMIT_RTTIME))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "(5000, 5000)\n"


def test_a_sweep_that_could_not_look_is_made_up_for_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[dict[bytes, int]] = []

    def end(children: dict[bytes, int]) -> list[int]:
        asked.append(dict(children))
        if len(asked) == 1:
            raise OSError(errno.EMFILE, "Too many open files")
        return []

    monkeypatch.setattr(leftovers, "end", end)
    sweeper = leftovers.Sweeper()
    over: list[bool] = []
    sweeper.add(b"cookie", 1, lambda: over.append(True))
    with pytest.raises(OSError, match="Too many"):
        sweeper.sweep()
    sweeper.sweep()  # it was tried just now
    assert (len(asked), over) == (1, [])
    sweeper.sweep(now=True)
    assert asked == [{b"cookie": 1}] * 2
    assert over == [True]
