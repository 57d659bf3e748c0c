"""A real driver, seen from outside: by the doctor, and in a process that runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_cudafork import Verdict, run_script
from pytest_cudafork.attach.examine import examine
from tests.support.attached import HANGS_SECONDS, running

pytestmark = pytest.mark.gpu

ASKS_NVML = f"""\
import ctypes, threading
nvml = ctypes.CDLL("libnvidia-ml.so.1")
assert nvml.nvmlInit_v2() == 0
ctypes.CDLL("libcuda.so.1")
print("ready", flush=True)
threading.Event().wait({HANGS_SECONDS})
"""


def test_a_process_that_touched_is_known_by_the_device_that_it_has_open(tmp_path: Path) -> None:
    with running(tmp_path, "touch", "fork", watched=False) as server:
        found = examine(server.pids[0], stacks=False)
    assert found.member.state.verdict is Verdict.INITIALIZED, found
    (child,) = found.descendants
    assert child.state.verdict in (Verdict.POISONED, Verdict.NOT_OBSERVABLE), child


def test_a_process_that_asks_nvml_alone_is_clean() -> None:
    process = subprocess.Popen([sys.executable, "-c", ASKS_NVML], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        found = examine(process.pid, stacks=False)
    finally:
        process.kill()
        process.communicate()
    assert found.member.target.driver
    if not found.member.target.device and found.member.state.verdict is Verdict.NOT_OBSERVABLE:
        pytest.skip(f"of this driver it is not known: {found.member.state.why}")
    assert found.member.state.verdict is Verdict.CLEAN, found


def test_the_doctor_touches_nothing_and_knows_the_gpus() -> None:
    result = run_script(
        "pytest_cudafork",
        *("doctor", "--json", "--no-imports"),
        method=None,
        timeout=300,
        allow_findings=True,
    )
    assert result.touches == ()
    machine = json.loads(result.stdout)["facts"]["machine"]
    assert machine["release"]
    assert machine["gpus"]
    assert all(each["capability"] for each in machine["gpus"])
