"""The race that deadlocked a witness which waited for the GIL, against the real driver.

One thread calls ``cuInit`` without the GIL while another calls ``torch.cuda.init`` holding it: a
witness that waits for the GIL inside the driver's lock never gets it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROUNDS = 50
ROOT = Path(__file__).parents[2]

RACE = """
import ctypes, os, sys, threading
import torch
from pytest_cudafork.observe.base.ledger import Ledger
from pytest_cudafork.observe.handed_on import WatchSettings
from pytest_cudafork.check.watch import Watch

path = sys.argv[1]
Ledger(path).create()
watch = Watch(WatchSettings(path, "real", "poison"), str(os.getpid()))
watch.begin()
driver = ctypes.CDLL("libcuda.so.1")
together = threading.Barrier(2)

def without_the_gil():
    together.wait()
    assert driver.cuInit(0) == 0

def holding_the_gil():
    together.wait()
    torch.cuda.init()

threads = [threading.Thread(target=t) for t in (without_the_gil, holding_the_gil)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
touches = [record for record in watch.observer.records() if record["k"] == "touch"]
print([touch["witness"] for touch in touches].count("injection"), touches[0]["gil"], flush=True)
os._exit(0)
"""


@pytest.mark.gpu
def test_the_witness_never_waits_for_the_gil(tmp_path: Path) -> None:
    pytest.importorskip("torch")

    def race(number: int) -> str:
        done = subprocess.run(
            [sys.executable, "-c", RACE, str(tmp_path / f"{number}.jsonl")],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
            capture_output=True,
            text=True,
            timeout=90,  # the hang lasted for ever; a round takes seconds
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(race, range(ROUNDS)))
    assert len(answers) == ROUNDS
    assert {answer.split()[0] for answer in answers} == {"1"}, answers
