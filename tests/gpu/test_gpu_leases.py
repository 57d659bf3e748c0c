"""Leases of real GPUs: what a test's process sees, and what it leaves on the device."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_cudafork.gpus.inventory import Gpu, Machine, kernel_gpus, real_machine
from pytest_cudafork.gpus.nvml import CtypesNvml, open_nvml
from pytest_cudafork.gpus.waiting import visible_gpus
from tests.support.isolation import METHODS, is_gone
from tests.support.sessions import assert_no_crash, needs_torch, run_session

pytestmark = pytest.mark.gpu

HOLD = """
import ctypes, os, sys, time

def hold(mib=256):
    cuda, device, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p()
    memory = ctypes.c_void_p()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(mib << 20)) == 0

def count():
    cuda, number = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDeviceGetCount(ctypes.byref(number)) == 0
    return number.value

if __name__ == "__main__":
    hold()
    with open(sys.argv[1], "w") as file:
        file.write(str(os.getpid()))
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def machine() -> Machine:
    """The GPUs of this machine, none of them in MIG mode."""
    found = real_machine()
    assert found.gpus, found.why_none
    if any(gpu.mig for gpu in found.gpus):
        pytest.skip("CUDA shows a process one MIG instance, whatever it asked for")
    return found


@pytest.fixture(scope="module")
def cards(machine: Machine) -> tuple[Gpu, ...]:
    """Those of them that this session may use."""
    return visible_gpus()


@pytest.fixture
def survivors(pytester: pytest.Pytester) -> Iterator[Path]:
    """A folder whose files hold the pids of processes that outlive their test."""
    pytester.makepyfile(hold=HOLD)
    folder = pytester.mkdir("pids")
    yield folder
    for path in folder.iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(path.read_text()), signal.SIGKILL)


def run(pytester: pytest.Pytester, *args: str) -> pytest.RunResult:
    """Run a session with locks of its own, for other sessions may use this machine's."""
    result = run_session(pytester, "-v", "-rs", *args, env={"TMPDIR": str(pytester.path)})
    assert_no_crash(result)
    return result


def test_all_ways_to_count_the_gpus_agree(machine: Machine) -> None:
    with open_nvml(CtypesNvml()) as nvml:
        assert tuple(nvml.devices()) == tuple(tuple(gpu) for gpu in machine.gpus)
    assert [gpu.uuid for gpu in kernel_gpus()] == [gpu.uuid for gpu in machine.gpus]


def test_nvml_is_asked_alike_with_and_without_its_package(
    pytester: pytest.Pytester, cards: tuple[Gpu, ...], survivors: Path
) -> None:
    if importlib.util.find_spec("pynvml") is None:
        pytest.skip("nvidia-ml-py is not installed")
    process = subprocess.Popen([sys.executable, "hold.py", str(survivors / "one")])
    try:
        while not (survivors / "one").exists():
            assert process.poll() is None
        uuid = cards[0].uuid
        deadline = time.monotonic() + 60
        with open_nvml() as nvml, open_nvml(CtypesNvml()) as own:
            while True:  # others use the GPU: until nothing has changed meanwhile
                before, asked, after = nvml.memory(uuid), own.memory(uuid), nvml.memory(uuid)
                if before == after:
                    break
                assert time.monotonic() < deadline, "what is in use changes all the time"
        assert asked == before
        assert asked.used >= 256 << 20
    finally:
        process.kill()
        process.wait()
        (survivors / "one").unlink(missing_ok=True)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.usefixtures("survivors")
def test_a_test_sees_as_many_gpus_as_it_asked_for(
    pytester: pytest.Pytester, cards: tuple[Gpu, ...], method: str
) -> None:
    total = len(cards)
    pytester.makepyfile(f"""
        import os
        import pytest
        from hold import count

        pytestmark = pytest.mark.cuda_isolated(method={method!r})

        @pytest.mark.gpus(1)
        def test_one():
            assert count() == 1

        @pytest.mark.gpus({total})
        def test_all():
            assert count() == {total}
            assert len(os.environ["CUDA_VISIBLE_DEVICES"].split(",")) == {total}

        @pytest.mark.gpus({total + 1})
        def test_more():
            pass
    """)
    result = run(pytester)
    result.assert_outcomes(passed=2, skipped=1)
    assert f"needs {total + 1} GPUs; this session has {total}" in result.stdout.str()


@needs_torch
def test_torch_sees_as_many_gpus_as_it_was_given(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest
        torch = pytest.importorskip("torch")

        @pytest.mark.gpus(1)
        def test_one():
            assert torch.cuda.device_count() == 1
            assert torch.ones(3, device="cuda").sum().item() == 3
    """)
    run(pytester).assert_outcomes(passed=1)


@pytest.mark.usefixtures("survivors")
def test_counting_the_gpus_initializes_nothing_in_the_pytest_process(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile("""
        import pytest
        from hold import hold

        @pytest.mark.gpus(1)
        @pytest.mark.parametrize("number", range(2))
        def test_allocates(number):
            hold()

        def test_after(cuda_state):
            assert cuda_state().safe_to_fork
    """)
    result = run(pytester, "--cuda-fork-check=touch")
    result.assert_outcomes(passed=3)
    assert "still allocated" not in result.stdout.str()


def test_what_a_surviving_process_holds_is_told(
    pytester: pytest.Pytester, cards: tuple[Gpu, ...], survivors: Path
) -> None:
    pytester.makepyfile(f"""
        import os, pathlib, subprocess, sys, time
        import pytest
        from hold import hold

        pids = pathlib.Path({str(survivors)!r})

        def wait(name):
            while not (pids / name).exists() or not (pids / name).read_text():
                time.sleep(0.05)

        @pytest.mark.gpus(1)
        def test_starts_a_server():
            subprocess.Popen(
                [sys.executable, "hold.py", str(pids / "server")], start_new_session=True
            )
            wait("server")

        @pytest.mark.gpus(1)
        def test_forks_a_daemon():
            if os.fork() == 0:
                os.setsid()
                hold()
                (pids / "daemon").write_text(str(os.getpid()))
                time.sleep(600)
                os._exit(0)
            wait("daemon")

        @pytest.mark.gpus(1)
        def test_is_innocent():
            hold()
    """)
    result = run(pytester)
    result.assert_outcomes(passed=3, warnings=2)
    text = result.stdout.str()
    for name in ("server", "daemon"):
        pid = (survivors / name).read_text()
        held = rf"process {pid} \(.*\) holds (\d+) MiB on GPU {cards[0].number}"
        found = re.search(held, text)
        assert found, text
        assert int(found[1]) >= 256
        assert is_gone(int(pid))
    assert "test_is_innocent" not in text.partition("warnings summary")[2]


def test_others_on_the_gpu_are_not_blamed(pytester: pytest.Pytester, survivors: Path) -> None:
    pytester.makeconftest(f"""
        import pathlib, subprocess, sys, time
        import pytest

        @pytest.hookimpl(trylast=True)
        def pytest_runtest_logstart(nodeid):
            # after the lease is taken, and not by the test
            path = pathlib.Path({str(survivors)!r}) / "other"
            if not path.exists():
                subprocess.Popen([sys.executable, "hold.py", str(path)])
                while not path.exists() or not path.read_text():
                    time.sleep(0.05)
    """)
    pytester.makepyfile("""
        import pytest
        from hold import hold

        @pytest.mark.gpus(1)
        def test_allocates():
            hold()
    """)
    result = run(pytester)
    result.assert_outcomes(passed=1)
    assert (survivors / "other").exists()
    assert "still allocated" not in result.stdout.str()


@pytest.mark.usefixtures("survivors")
def test_workers_take_turns_on_the_gpus(pytester: pytest.Pytester, cards: tuple[Gpu, ...]) -> None:
    pytest.importorskip("xdist")
    pytester.makepyfile(f"""
        import os
        import pytest
        from hold import hold

        @pytest.mark.gpus({len(cards)})
        @pytest.mark.parametrize("number", range(4))
        def test_has_all(number):
            flag = os.open("alone", os.O_CREAT | os.O_EXCL)
            hold(64)
            os.unlink("alone")
    """)
    run(pytester, "-p", "xdist.plugin", "-n", "2").assert_outcomes(passed=4)


def test_a_session_that_a_test_starts_gets_the_gpu_of_the_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_inner="""
        import pytest

        @pytest.mark.gpus(1, wait=5)
        def test_inner(): pass

        @pytest.mark.gpus(2)
        def test_more(): pass
        """,
        test_outer="""
        import subprocess, sys
        import pytest

        @pytest.mark.gpus(1)
        def test_outer():
            command = [sys.executable, "-m", "pytest", "-p", "pytest_cudafork.plugin"]
            done = subprocess.run([*command, "test_inner.py"], capture_output=True, text=True)
            assert "1 passed, 1 skipped" in done.stdout, done.stdout
        """,
    )
    run(pytester, "test_outer.py").assert_outcomes(passed=1)
