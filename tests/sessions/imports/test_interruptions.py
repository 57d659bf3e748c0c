"""An audit that is interrupted or killed leaves no process and no file behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid

import pytest

from tests.support.imports import (
    XDIST,
    assert_gone,
    needs_xdist,
    write_package,
)

ENDLESS = {
    "__init__": "",
    "m0": "",
    "m1": "import os, subprocess, time\n"
    "subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
    "open('started', 'a').close()\ntime.sleep(600)",
    "m2": "",
}

CONFTEST = """
import os
from pytest_cudafork.imports.audit.auditor import Auditor

def record(self, module, record=Auditor.record):
    # For a long time: between two tests no signal is the audit's business. What the fork server
    # tries comes before all imports.
    if module == "endless.m1" or os.path.exists("endless/a.py"):
        open("waits", "a").close()
    return record(self, module)

Auditor.record = record
"""


@pytest.fixture(params=["alone", "tried in the fork server"])
def endless(pytester: pytest.Pytester, request: pytest.FixtureRequest) -> list[str]:
    write_package(pytester.path, "endless", ENDLESS)
    if request.param != "alone":
        write_package(pytester.path, "endless", dict.fromkeys("abc", "import endless.m1"))
    return ["--cuda-fork-imports=endless", "-p", "pytest_cudafork.plugin"]


def _interrupt(
    pytester: pytest.Pytester, command: list[str], signum: int, *, until: tuple[str, ...]
) -> tuple[int, str, list[str]]:
    """Start a program, signal it while a module is imported; status, output, files left.

    ``until``: the files by which it says that it has come so far.
    """
    mark = uuid.uuid4().hex
    temporary = pytester.path / "temporary"
    temporary.mkdir()
    env = {
        **os.environ,
        "IMPORTS_TEST": mark,
        "TMPDIR": str(temporary),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_CUDA_FORK_DEVICE": "phantom:sm_90",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=pytester.path,
        env=env,
    )
    deadline = time.monotonic() + 240
    awaited = [pytester.path / name for name in until]
    while not all(path.exists() for path in awaited) and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(signum)
    out, _ = process.communicate(timeout=240)
    if signum != signal.SIGKILL:
        assert_gone(mark)
    else:
        assert_gone(mark, but="sleep")
    return process.returncode, out, [path.name for path in temporary.iterdir()]


@pytest.mark.parametrize(
    ("signum", "extra"),
    [
        (signal.SIGINT, ()),
        (signal.SIGTERM, ()),
        pytest.param(signal.SIGINT, (*XDIST, "-n1"), marks=needs_xdist),
    ],
    ids=["int", "term", "worker"],
)
def test_an_interrupted_session_leaves_nothing_behind(
    pytester: pytest.Pytester, endless: list[str], signum: int, extra: tuple[str, ...]
) -> None:
    conftest = CONFTEST
    if extra:  # a worker may take its time to end what it has started
        patch = "xdist.workermanage.NodeManager.EXIT_TIMEOUT = 120"
        conftest += f"import xdist.workermanage\n{patch}\n"
    pytester.makeconftest(conftest)
    command = ["pytest", *endless, *extra]
    status, out, left = _interrupt(pytester, command, signum, until=("started", "waits"))
    assert status == (2 if signum == signal.SIGINT else 143), out
    assert left == []
    assert "INTERNALERROR" not in out
    if not extra:
        assert "endless::endless" in out


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM], ids=["int", "term"])
def test_an_interrupted_command_leaves_nothing_behind(
    pytester: pytest.Pytester, endless: list[str], signum: int
) -> None:
    command = ["pytest_cudafork", "imports", "endless"]
    status, out, left = _interrupt(pytester, command, signum, until=("started",))
    assert status == 128 + signum, out
    assert left == []
    assert "Traceback" not in out


def test_a_session_that_is_killed_takes_its_imports_with_it(
    pytester: pytest.Pytester, endless: list[str]
) -> None:
    status, _, _ = _interrupt(pytester, ["pytest", *endless], signal.SIGKILL, until=("started",))
    assert status == -signal.SIGKILL
