"""A program that drives the file worker: what becomes of files, and of the worker's own end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.isolation import is_gone, lives
from tests.support.native import ROOT, needs_libraries
from tests.support.signs import wait_until

SECONDS = 240


class Driver:
    """Starts a worker and talks to it, as a runner of test files does."""

    def __init__(self, folder: Path, *args: str) -> None:
        read, write = os.pipe()
        self.answers = os.fdopen(read)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pytest_cudafork", "fileworker", f"--result-fd={write}", *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            pass_fds=(write,),
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        os.close(write)

    def ask(self, **command: Any) -> None:
        """Say one thing."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def run(self, filename: str) -> dict[str, Any]:
        """Run a file and return the answer."""
        self.ask(filename=filename)
        answer: dict[str, Any] = json.loads(self.answers.readline())
        return answer

    def end(self) -> tuple[int, str]:
        """Wait for the worker's end; return its status, and all that was written."""
        out, _ = self.process.communicate(timeout=SECONDS)
        self.answers.close()
        return self.process.returncode, out


@pytest.fixture
def drive(tmp_path: Path) -> Iterator[Any]:
    drivers: list[Driver] = []

    def start(*args: str) -> Driver:
        drivers.append(Driver(tmp_path, *args))
        return drivers[-1]

    yield start
    for driver in drivers:
        if driver.process.poll() is None:
            driver.process.kill()
            driver.process.communicate()


UNITTEST = """
import sys, unittest

class Tests(unittest.TestCase):
    def test_one(self):
        self.assertNotIn("pytest", sys.modules)

    def test_two(self):
        self.assertTrue({two})

    def test_zero_comes_last_without_f(self):
        print("zero ran", flush=True)

if __name__ == "__main__":
    unittest.main()
"""

PYTEST = """
import sys, pytest

def test_it(tmp_path):
    assert __name__ == "test_with_pytest" and tmp_path.is_dir()

if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-q", "-p", "no:cacheprovider"]))
"""

HANG = """
import os, subprocess, sys, time
sleeper = subprocess.Popen(["sleep", "600"], start_new_session=True)
with open("pids.tmp", "w") as file:
    file.write(f"{os.getpid()} {os.getppid()} {sleeper.pid}")
os.rename("pids.tmp", "pids")
time.sleep(600)
"""


def test_files_of_unittest_and_of_pytest_are_programs(tmp_path: Path, drive: Any) -> None:
    (tmp_path / "test_good.py").write_text(UNITTEST.format(two=True))
    (tmp_path / "test_bad.py").write_text(UNITTEST.format(two=False))
    (tmp_path / "test_with_pytest.py").write_text(PYTEST)
    driver = drive("--preload=json,unittest")
    names = ("test_good.py", "test_bad.py", "test_with_pytest.py", "test_none.py")
    answers = [driver.run(name) for name in names]
    assert [answer["returncode"] for answer in answers] == [0, 1, 0, 2]
    assert [answer["filename"] for answer in answers] == list(names)
    assert all(set(answer) == {"filename", "returncode", "elapsed"} for answer in answers)
    driver.ask(command="stop")
    status, out = driver.end()
    assert status == 0
    assert out.count("zero ran") == 1, "-f ends the bad one at its first failure"
    assert "1 passed" in out


@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL", "reader gone"])
def test_whatever_ends_the_worker_nothing_is_left(tmp_path: Path, drive: Any, how: str) -> None:
    (tmp_path / "test_hang.py").write_text(HANG)
    driver = drive()
    driver.ask(filename="test_hang.py")
    wait_until((tmp_path / "pids").exists, "the file", SECONDS)
    pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
    if how == "reader gone":
        driver.answers.close()
    else:
        driver.process.send_signal(signal.Signals[how])
    status, _ = driver.end()
    assert status == (-signal.SIGKILL if how == "SIGKILL" else 143)
    assert [pid for pid in pids if not is_gone(pid)] == []


LEAVES = """
import os, signal, socket, subprocess, time

def started(what):
    # Fork, and return the process that says that it is there; what is done there first.
    read, write = os.pipe()
    if os.fork() == 0:
        what()
        os.write(write, str(os.getpid()).encode())
        os.closerange(0, 3)
        time.sleep(600)
    return int(os.read(read, 20))

def become_daemon():
    os.setsid()
    if os.fork() != 0:
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

def serve():
    globals()["listening"] = socket.create_server(("127.0.0.1", 0))

left = [started(become_daemon), started(serve), started(os.setpgrp)]
quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
left.append(subprocess.Popen(["sleep", "600"], start_new_session=True, **quiet).pid)
with open("pids", "w") as file:
    print(*left, file=file)
"""


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), 9)"])
def test_what_a_file_leaves_is_gone_when_it_is_told_and_the_next_file_runs(
    tmp_path: Path, drive: Any, end: str
) -> None:
    (tmp_path / "leaves.py").write_text(LEAVES + end)
    (tmp_path / "next.py").write_text("")
    driver = drive()
    assert driver.run("leaves.py")["returncode"] == (137 if end else 0)
    pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 4
    assert [pid for pid in pids if lives(pid)] == []
    assert driver.run("next.py")["returncode"] == 0
    driver.ask(command="stop")
    assert driver.end()[0] == 0


TOUCH = """
import ctypes, os
from pytest_cudafork.observe.driver import native_libs
native_libs.load(native_libs.PHANTOM_DRIVER, os.RTLD_GLOBAL | os.RTLD_NOW)
ctypes.CDLL("libcuda.so.1").cuInit(0)
"""


@needs_libraries
def test_a_module_that_initializes_cuda_is_named_and_no_file_runs(
    tmp_path: Path, drive: Any
) -> None:
    (tmp_path / "touching.py").write_text(TOUCH)
    (tmp_path / "test_it.py").write_text("open('ran', 'w')")
    driver = drive("--preload=json,touching")
    driver.ask(filename="test_it.py")
    status, out = driver.end()
    assert status == 2
    assert "no file was run: after `import touching`, CUDA is initialized" in out
    assert "`python -m pytest_cudafork imports touching --preload` names the line" in out
    assert not (tmp_path / "ran").exists()


def test_a_module_that_cannot_be_imported_anew_is_named(tmp_path: Path, drive: Any) -> None:
    (tmp_path / "once.py").write_text("open('once.lock', 'x').close()")
    (tmp_path / "test_it.py").write_text("")
    driver = drive("--preload=json,once", "--renew-after=1")
    assert driver.run("test_it.py")["returncode"] == 0
    driver.ask(filename="test_it.py")
    status, out = driver.end()
    assert status == 2
    assert "--preload: once cannot be imported anew (--renew-after):\nTraceback" in out
    assert "FileExistsError" in out


def test_a_module_that_is_not_there_is_named(drive: Any) -> None:
    driver = drive("--preload=json,no_such_library")
    status, out = driver.end()
    assert status == 2
    assert "--preload: no_such_library cannot be imported" in out
    assert "No module named 'no_such_library'" in out


def test_the_example_of_the_docs_drives_it(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text("print('ran')")
    (tmp_path / "bad.py").write_text("1 / 0")
    example = ROOT / "docs" / "examples" / "file_worker" / "drive.py"
    for names, status in ((["good.py"], 0), (["good.py", "bad.py"], 1)):
        done = subprocess.run(
            [sys.executable, str(example), *names],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
        )
        assert done.returncode == status, done.stderr
        assert done.stdout.splitlines()[-1].startswith(f"{status} of {len(names)} files failed")


@pytest.mark.parametrize(
    ("closed", "status", "codes"),
    [("2>&-", 2, [0, 137, 0, 2]), (">&- 2>&-", 2, [0, 137, 0, 2]), ("<&-", 2, [])],
)
def test_streams_that_are_closed_cost_no_answer(
    tmp_path: Path, closed: str, status: int, codes: list[int]
) -> None:
    (tmp_path / "good.py").write_text("print('good')")
    (tmp_path / "killed.py").write_text("import os; os.kill(os.getpid(), 9)")
    asked = [json.dumps({"filename": f"{name}.py"}) for name in ("good", "killed", "good")]
    done = subprocess.run(
        [
            *("sh", "-c", f'exec "$0" -m pytest_cudafork fileworker --result-fd=5 {closed} 5>told'),
            sys.executable,
        ],
        input="\n".join([*asked, "nonsense", ""]),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=SECONDS,
        check=False,
    )
    answers = (tmp_path / "told").read_text().splitlines()
    assert [json.loads(line)["returncode"] for line in answers] == codes
    assert done.returncode == status
    assert ("standard input, from which commands are read, is closed" in done.stderr) == (not codes)
