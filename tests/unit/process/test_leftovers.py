"""Tests that nothing of an isolated test is left, however it and its descendants end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_cudafork.process import leftovers
from tests.support.death import METHODS, headline, run_deaths
from tests.support.helpers import needs_torch
from tests.support.isolation import is_gone

DESCENDANTS = """
from multiprocessing import shared_memory

def plain():
    note(subprocess.Popen(["sleep", "1000"]).pid)
def session_of_its_own():
    note(subprocess.Popen(["sleep", "1000"], start_new_session=True, env={}).pid)
def ignores_sigterm():
    child = subprocess.Popen(["sh", "-c", "trap '' TERM INT HUP; echo up; sleep 1000 & wait"],
                             stdout=subprocess.PIPE)
    child.stdout.readline()
    note(child.pid)
def holds_stdout():
    note(subprocess.Popen(["sleep", "1000"], stdout=OUT, stderr=OUT).pid)
def daemon():
    # as daemons do: fork twice, a session of its own, no descriptor left
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(writing, str(os.getpid()).encode())
            os.closerange(0, 4096)
            time.sleep(1000)
        os._exit(0)
    os.wait()
    note(int(os.read(reading, 20)))
def shared():
    memory = shared_memory.SharedMemory(create=True, size=4096)
    with open("SHM", "a") as file: file.write(memory.name.lstrip("/") + "\\n")
    globals().setdefault("keep", []).append(memory)
def temporary():
    import tempfile
    keep_file = tempfile.NamedTemporaryFile()
    globals().setdefault("keep", []).append(keep_file)
WHAT = [plain, session_of_its_own, ignores_sigterm, holds_stdout, daemon, shared]
OUT = int(os.environ["REAL_OUT"])

@pytest.mark.parametrize("what", WHAT, ids=lambda f: f.__name__)
@pytest.mark.parametrize("end", ["passes", "is_killed", "crashes", "hangs"])
def test_leaves(what, end):
    what()
    if end == "is_killed": kill_self()
    if end == "crashes": os.abort()
    if end == "hangs": time.sleep(1000)
def test_last(): pass
"""

KINDS = (
    "plain", "session_of_its_own", "ignores_sigterm", "holds_stdout", "daemon", "shared",
)  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_no_process_and_no_shared_memory_is_left(
    pytester: pytest.Pytester, method: str, capfd: pytest.CaptureFixture[str]
) -> None:
    body = DESCENDANTS.replace("SHM", str(pytester.path / "shm"))
    args = []
    if method == "spawn":
        pytest.importorskip("xdist")
        args = ["-p", "xdist.plugin", "-n", "3"]
    # the pipe through which this test reads the session: whoever holds it keeps the test waiting
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REAL_OUT", "1")
        result = run_deaths(pytester, method, body, *args, timeout=5 if method == "spawn" else 0.7)
    for kind in KINDS:
        assert "SIGKILL in call" in headline(result, f"test_leaves[is_killed-{kind}]")
        assert "SIGABRT in call" in headline(result, f"test_leaves[crashes-{kind}]")
        assert "time limit of" in headline(result, f"test_leaves[hangs-{kind}]")
    passed = len(KINDS) + 1
    assert result.parseoutcomes() | {"warnings": 0} == {
        "failed": 3 * len(KINDS),
        "passed": passed,
        "warnings": 0,
    }


@needs_torch
@pytest.mark.parametrize("strategy", ["file_system", "file_descriptor"])
def test_the_shared_tensors_of_torch_are_not_left(pytester: pytest.Pytester, strategy: str) -> None:
    body = f"""
    import torch, torch.multiprocessing
    torch.multiprocessing.set_sharing_strategy({strategy!r})
    @pytest.mark.parametrize("end", ["passes", "dies"])
    def test_shares(end):
        note(os.getpid())
        tensor = torch.ones(1000).share_memory_()
        storage = tensor.untyped_storage()
        shared = storage._share_filename_cpu_() if {strategy!r} == "file_system" else None
        if shared:
            with open("SHM", "a") as file: file.write(shared[1].decode().lstrip("/") + "\\n")
            assert os.path.exists("/dev/shm" + shared[1].decode())
        if end == "dies": kill_self()
    """.replace("SHM", str(pytester.path / "shm"))
    from textwrap import dedent

    result = run_deaths(pytester, "forkserver", dedent(body), timeout=60)
    result.assert_outcomes(passed=1, failed=1)
    assert "SIGKILL in call" in headline(result, "test_shares[dies]")


@pytest.fixture
def cookie() -> bytes:
    return os.urandom(16)


def start(cookie: bytes, code: str) -> subprocess.Popen[str]:
    """Start a process that wears the mark of a cookie and runs the code."""
    text = "import os, sys, time; from pytest_cudafork.process import leftovers\n"
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
            assert one.wait(10) == -signal.SIGKILL
            assert leftovers.marked_processes([cookie, other]) == [two.pid]
            assert two.poll() is None
        finally:
            leftovers.end({cookie: one.pid, other: two.pid})


def test_a_sweep_ends_what_ended_children_have_left_and_nothing_else(cookie: bytes) -> None:
    other = os.urandom(16)
    sweeper = leftovers.Sweeper()
    with start(cookie, "") as one, start(other, "") as two:
        try:
            sweeper.sweep(now=True)
            assert (one.poll(), two.poll()) == (None, None)
            sweeper.add(cookie, one.pid)
            sweeper.sweep()
            assert one.wait(10) == -signal.SIGKILL
            sweeper.add(other, two.pid)
            sweeper.sweep()  # it was done just now
            assert two.poll() is None
            sweeper.sweep(now=True)
            assert two.wait(10) == -signal.SIGKILL
        finally:
            leftovers.end({cookie: one.pid, other: two.pid})


def test_a_process_that_tidies_up_is_given_the_time_for_it(cookie: bytes, tmp_path: Path) -> None:
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
        process.wait(10)
    assert tidied.read_text() == "done\n"


def test_one_that_does_not_go_by_itself_is_killed_in_the_end(
    cookie: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "_TIDY_SECONDS", 0.2)
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
        process.wait(10)
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
        "from pytest_cudafork.process import leftovers; leftovers.mark_process(bytes(16))\n"
        "print(resource.getrlimit(resource.RLIMIT_RTTIME))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "(5000, 5000)\n"
