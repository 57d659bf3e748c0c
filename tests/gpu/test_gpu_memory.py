"""Memory of real GPUs: shared by what tests need, recorded, waited for, and who holds it named."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_cudafork import GpuBusyError, gpu
from pytest_cudafork.gpus.inventory import Gpu
from pytest_cudafork.gpus.memory import measure
from pytest_cudafork.gpus.waiting import visible_gpus
from tests.gpu.test_gpu_leases import HOLD, run
from tests.support.isolation import is_gone

pytestmark = pytest.mark.gpu
GIB = 1 << 30


@pytest.fixture(scope="module")
def cards() -> tuple[Gpu, ...]:
    """The GPUs that this session may use, of which NVML tells the memory."""
    found = visible_gpus()
    if any(one.mig or not one.memory for one in found):
        pytest.skip("NVML does not tell the memory of MIG instances by process")
    return found


@pytest.fixture
def holder(pytester: pytest.Pytester) -> Iterator[subprocess.Popen[bytes]]:
    """A process that no test of a session has started, with 2 GiB on the first GPU."""
    pytester.makepyfile(hold=HOLD.replace("    hold()\n", "    hold(2048)\n"))
    process = subprocess.Popen([sys.executable, "hold.py", "holds"])
    while not Path("holds").exists():
        assert process.poll() is None
        time.sleep(0.05)
    yield process
    process.kill()
    process.wait()


def test_tests_of_random_needs_never_exceed_a_card(
    pytester: pytest.Pytester, cards: tuple[Gpu, ...]
) -> None:
    pytest.importorskip("xdist")
    pytester.makepyfile(hold=HOLD)
    pytester.makepyfile(f"""
        import random, time
        import pytest
        from hold import hold

        CHANCE = random.Random(7)
        SIZES = [int(CHANCE.uniform(0.02, 0.7) * {cards[0].memory} / 2**20) for _ in range(60)]
        SPARE = 1024 + {cards[0].memory} // 6 // 2**20

        # 1 GiB for the context, and a sixth for others that use the GPUs beside this session
        @pytest.mark.parametrize("mib", [
            pytest.param(n, marks=pytest.mark.gpus(1, memory=f"{{n + SPARE}}MiB")) for n in SIZES
        ])
        def test_holds(mib):
            hold(mib)  # fails where there is no room
            time.sleep(0.3)
    """)
    fullest, over = [0.0] * len(cards), threading.Event()

    def watch() -> None:
        while not over.wait(0.1):
            for place, (card, now) in enumerate(
                zip(cards, (measure(cards) or {}).values(), strict=False)
            ):
                fullest[place] = max(fullest[place], now.used / card.memory)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        run(pytester, "-p", "xdist.plugin", "-n", "6").assert_outcomes(passed=60)
    finally:
        over.set()
        watcher.join()
    assert all(0.5 < part <= 1 for part in fullest), fullest


def test_the_memory_of_a_test_is_recorded_and_used(
    pytester: pytest.Pytester, cards: tuple[Gpu, ...]
) -> None:
    pytester.makepyfile(hold=HOLD)
    pytester.makepyfile("""
        import time
        import pytest
        from hold import hold

        @pytest.mark.gpus(1)
        def test_holds():
            hold(3072)
            time.sleep(1)
    """)
    result = run(pytester, "--cuda-fork-profile=p.json")
    result.assert_outcomes(passed=1)
    (cost,) = json.loads(Path("p.json").read_text())["tests"].values()
    assert cost["gpus"] == 1
    assert 3 * GIB <= cost["vram"] < 5 * GIB
    assert "largest in GPU memory:" in result.stdout.str()
    run(pytester, "--cuda-fork-pack=p.json").assert_outcomes(passed=1)


def test_who_holds_memory_is_named(cards: tuple[Gpu, ...], holder: subprocess.Popen[bytes]) -> None:
    with pytest.raises(GpuBusyError, match=rf"GPU {cards[0].number} has .* in use") as caught:
        gpu.wait_idle([0], timeout=1)
    assert f"process {holder.pid}" in str(caught.value)
    with pytest.raises(GpuBusyError, match=f"process {holder.pid}"):
        gpu.wait_release(holder.pid, timeout=1)
    holder.kill()
    assert gpu.wait_release(holder.pid)  # a zombie
    told = ""
    try:
        gpu.wait_idle([0], timeout=1)
    except GpuBusyError as error:  # others use the GPU
        told = str(error)
    assert f"process {holder.pid} " not in told


def test_an_orphan_of_a_test_is_ended_before_the_next(
    pytester: pytest.Pytester, cards: tuple[Gpu, ...]
) -> None:
    pytester.makepyfile(hold=HOLD.replace("    hold()\n", "    hold(4096)\n"))
    pytester.makepyfile("""
        import pathlib, subprocess, sys, time

        START = (
            "import subprocess, sys; "
            "subprocess.Popen([sys.executable, 'hold.py', 'pid'], start_new_session=True)"
        )

        def test_leaves_a_server():
            subprocess.run([sys.executable, "-c", START], check=True)
            while not pathlib.Path("pid").exists() or not pathlib.Path("pid").read_text():
                time.sleep(0.05)

        def test_after(): pass
    """)
    try:
        run(pytester, "--cuda-fork-settle=1").assert_outcomes(passed=2)
        assert is_gone(int(Path("pid").read_text()))
    finally:
        with contextlib.suppress(OSError, ValueError):
            os.kill(int(Path("pid").read_text()), signal.SIGKILL)
