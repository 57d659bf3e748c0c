"""What the tests of a session have left behind is ended before the next, and nobody else is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest

from pytest_cudafork.gpus import memory, settle, waiting
from pytest_cudafork.gpus.inventory import Gpu
from pytest_cudafork.gpus.memory import Unknown
from pytest_cudafork.gpus.nvml import DeviceMemory
from pytest_cudafork.gpus.settle import Settling
from pytest_cudafork.process.descendants import process_state
from pytest_cudafork.settings import environment

GIB = 1 << 30
GPU = Gpu(0, "GPU-0a")
ORPHAN = """
import os, subprocess, sys
os.environ["PYTEST_CURRENT_TEST"] = sys.argv[1]
process = subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=subprocess.DEVNULL)
print(process.pid, flush=True)
"""


class Driver:
    """Tells who holds memory on the one GPU: processes, as long as they live."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.processes: dict[int, int | None] = {}
        self.unknown = ""
        monkeypatch.setattr(memory, "look", self.look)
        monkeypatch.setattr(settle, "TIMEOUT", 120.0)

    def look(self, gpus: Sequence[Gpu]) -> dict[str, DeviceMemory | Unknown]:
        """Answer."""
        if self.unknown:
            return {gpu.uuid: Unknown(self.unknown) for gpu in gpus}
        living = {pid: n for pid, n in self.processes.items() if process_state.lives(pid)}
        return {
            gpu.uuid: DeviceMemory(sum(n or 0 for n in living.values()), living) for gpu in gpus
        }


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """The driver, with no memory in use."""
    return Driver(monkeypatch)


@pytest.fixture
def settling(driver: Driver) -> Iterator[Settling]:
    """A session that settles, and allows 1 GiB."""
    made = Settling([GPU], GIB)
    yield made
    made.close()
    assert not environment.is_set(environment.TEST_SESSION)


def orphan(test: str) -> int:
    """Start a process that descends from this one and has lost its parent."""
    done = subprocess.run(
        [sys.executable, "-c", ORPHAN, test], stdout=subprocess.PIPE, check=True, text=True
    )
    pid = int(done.stdout)
    while not memory.test_of(pid):
        assert process_state.lives(pid)
    return pid


def test_an_orphan_of_a_test_is_ended(driver: Driver, settling: Settling) -> None:
    pid = orphan("test_a.py::test_a (call)")
    driver.processes = {pid: 5 * GIB}
    assert settling.why_not([GPU]) == ""
    assert not process_state.lives(pid)


def test_what_a_fixture_may_need_is_named_and_not_ended(
    driver: Driver, settling: Settling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settle, "TIMEOUT", 0.1)
    pid = orphan("test_a.py::test_a (setup)")
    driver.processes = {pid: 5 * GIB}
    try:
        why_not = settling.why_not([GPU])
        assert f"process {pid} (sleep 600) holds 5120 MiB on GPU 0" in why_not
        assert "started by test_a.py::test_a. End what" in why_not
        assert process_state.lives(pid)
    finally:
        os.kill(pid, 9)


def test_a_child_of_the_session_and_strangers_are_not_ended(
    driver: Driver, settling: Settling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settle, "TIMEOUT", 0.1)
    child = subprocess.Popen(["sleep", "600"])
    with monkeypatch.context() as patch:
        patch.delenv(environment.TEST_SESSION)
        stranger = orphan("test_other.py::test_of_another_session (call)")
    driver.processes = {child.pid: GIB, stranger: GIB}
    try:
        assert "GPU 0 has 2 GiB in use (allowed: 1 GiB)" in settling.why_not([GPU])
        assert child.poll() is None
        assert process_state.lives(stranger)
        assert os.getpid() in settle.ancestors(child.pid)
        assert settle.ancestors(1) == []
    finally:
        os.kill(stranger, 9)
        child.kill()
        child.wait()


def test_what_was_in_use_before_the_session_may_stay(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settle, "TIMEOUT", 0.1)
    process = subprocess.Popen(["sleep", "600"])
    driver.processes = {process.pid: 7 * GIB}
    made = Settling([GPU], GIB)
    try:
        driver.processes = {process.pid: 8 * GIB}
        assert made.why_not([GPU]) == ""
        driver.processes = {process.pid: 9 * GIB}
        assert "allowed: 8 GiB" in made.why_not([GPU])
    finally:
        made.close()
        process.kill()
        process.wait()


def test_what_nobody_can_tell_is_known_to_be_unknown(driver: Driver) -> None:
    driver.unknown = "NVML: no permission"
    made = Settling([GPU], GIB)
    assert made.unknown == ["GPU 0 (GPU-0a): NVML: no permission"]
    assert made.why_not([GPU]) == ""
    made.close()


def test_that_nobody_tells_which_gpus_there_are_is_known_to_be_unknown(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "unknown_machine", lambda: ["which GPUs there are: NVML: none"])
    made = Settling([], GIB)
    made.close()
    assert made.unknown == ["which GPUs there are: NVML: none"]
