"""Sessions whose tests wait for memory of a phantom's GPU, which a file says to be in use."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

from tests.sessions.gpus.test_leases import run
from tests.support.isolation import lives
from tests.support.sessions import failure, outcomes

HOLDERS = """
import os, pathlib, subprocess, sys
import pytest

MEMORY = os.environ["_CUDAFORK_PHANTOM_MEMORY"]
DAEMON = (
    "import subprocess, sys; "
    "print(subprocess.Popen(['sleep', '600'], start_new_session=True, "
    "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid)"
)

def hold(pid, gib):
    with open(MEMORY, "a") as file:
        file.write(f"0 {pid} {gib << 30}\\n")

def daemon(gib):
    pid = int(subprocess.run([sys.executable, "-c", DAEMON], capture_output=True).stdout)
    hold(pid, gib)
    (pathlib.Path(MEMORY).parent / f"pid-{pid}").touch()
"""


TIMEOUTS = """
import os
from pytest_cudafork.gpus import settle

def why_not(self, gpus, why_not=settle.Settling.why_not):
    settle.TIMEOUT = 0.1 if os.path.exists("server-runs") else 120
    return why_not(self, gpus)

settle.Settling.why_not = why_not
"""


@pytest.fixture
def memory(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that says who holds memory; a test waits until it is back, or but a moment."""
    path = pytester.path / "memory"
    path.touch()
    monkeypatch.setenv("_CUDAFORK_PHANTOM_MEMORY", str(path))
    pytester.makeconftest(TIMEOUTS)
    return path


def test_tests_find_gpus_as_they_were_or_are_told_who_uses_them(
    pytester: pytest.Pytester, memory: Path
) -> None:
    pytester.makepyfile(
        HOLDERS
        + """
def test_leaves_a_daemon():
    daemon(20)

def test_finds_it_ended():
    assert not [1 for line in open(MEMORY) if os.path.exists(f"/proc/{line.split()[1]}/fd/0")]

@pytest.fixture(scope="module")
def server():
    daemon(5)
    open("server-runs", "w").close()

def test_with_a_server(server): pass

def test_is_not_run(server): assert False, "it has run"

@pytest.mark.gpus(1)
def test_nor_is_one_with_gpus(server): assert False, "it has run"

@pytest.mark.gpus(1, memory="70GiB")
def test_needs_only_so_much(): pass

@pytest.mark.skip(reason="so")
def test_is_skipped(): pass
"""
    )
    try:
        result = run(pytester, "--cuda-fork-settle=2", face="phantom:sm_90")
        result.assert_outcomes(passed=4, errors=2, skipped=1)
        pids = [int(path.name[4:]) for path in pytester.path.glob("pid-*")]
        assert len(pids) == 2
        ended = [pid for pid in pids if not lives(pid)]
        assert len(ended) == 1
        told = failure(result, "test_nor_is_one_with_gpus")
        assert "memory of its GPUs is not back, so it was not run" in told
        assert "GPU 0 has 5 GiB in use (allowed: 2 GiB): process" in told
        assert "(sleep 600) holds 5120 MiB on GPU 0, started by test_tests_find" in told
        assert "::test_with_a_server. End what" in told
        assert outcomes(result)["test_finds_it_ended"] == "PASSED"
        assert not list((pytester.path / "tmp").iterdir())
    finally:
        for path in pytester.path.glob("pid-*"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(path.name[4:]), signal.SIGKILL)
