"""Whole sessions whose tests say how much memory they need, on GPUs that the phantom shows."""

from __future__ import annotations

import json

import pytest

from tests.sessions.gpus.test_leases import XDIST, run
from tests.support.sessions import failure

PLAY = """
import json, os, pathlib, time
import pytest

HERE = pathlib.Path(__file__).parent
LOG = {log!r}

def log(what, gib):
    fd = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    gpus = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
    os.write(fd, (json.dumps([what, gpus, gib]) + chr(10)).encode())

def use(gib):
    log("in", gib)
    time.sleep(0.05)
    log("out", -gib)

def meet(mine, other):
    (HERE / mine).touch()
    limit = time.monotonic() + 120
    while not (HERE / other).exists():
        assert time.monotonic() < limit, "alone on the GPU"
        time.sleep(0.02)
"""


def test_workers_share_gpus_and_never_use_more_than_their_memory(
    pytester: pytest.Pytester,
) -> None:
    pytest.importorskip("xdist")
    log = pytester.path / "log"
    pytester.makepyfile(
        PLAY.format(log=str(log))
        + """
SIZES = [10, 40, 70, 25]

@pytest.mark.gpus(2, memory="40GiB")
def test_here(): meet("a", "b")

@pytest.mark.gpus(2, memory="50GiB")
def test_uses_both(): use(50)

@pytest.mark.gpus(2, memory="39GiB")
def test_there(): meet("b", "a")

@pytest.mark.parametrize("gib", [pytest.param(n, marks=pytest.mark.gpus(1, memory=f"{n}GiB"))
                                 for n in SIZES])
def test_uses(gib): use(gib)

@pytest.mark.gpus(1)
def test_alone(): use(79.5)

@pytest.mark.gpus(1, share=True)
def test_shares(): use(79.5 / 8)
"""
    )
    run(pytester, *XDIST, "-n", "2").assert_outcomes(passed=9)
    used: dict[str, float] = {}
    for _, gpus, gib in map(json.loads, log.read_text().splitlines()):
        for gpu in gpus:
            used[gpu] = used.get(gpu, 0) + gib
            assert used[gpu] <= 79.5 + 1e-6
    assert set(used) == {"0", "1"}
    assert max(map(abs, used.values())) < 1e-6


def test_what_a_gpu_never_has_is_an_error_of_that_test_and_strangers_are_named(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = pytester.path / "memory"
    memory.write_text(f"0 0 {60 << 30}\n")
    monkeypatch.setenv("_CUDAFORK_PHANTOM_MEMORY", str(memory))
    pytester.makepyfile("""
        import pytest

        @pytest.mark.gpus(1, memory="100GiB")
        def test_too_much(): pass

        @pytest.mark.gpus(1, memory="30GiB", wait=0.1)
        def test_waits(): pass

        @pytest.mark.gpus(1, memory="15GiB", wait=0.1)
        def test_fits(): pass

        @pytest.mark.gpus(1, memory=15)
        def test_wrong(): pass

        @pytest.mark.gpus(2, memory="1GiB")
        def test_skipped(): pass
    """)
    result = run(pytester, face="phantom:sm_90")
    result.assert_outcomes(passed=1, errors=3, skipped=1)
    assert "needs 1 GPU with 100 GiB each; this session has 79.5 GiB at most" in failure(
        result, "test_too_much"
    )
    told = failure(result, "test_waits")
    assert "1 of 1 GPUs with 30 GiB free were not free within 0.1 s" in told
    assert "has 60 GiB in use by others than tests" in told
    assert "memory=15): memory is a size" in failure(result, "test_wrong")
