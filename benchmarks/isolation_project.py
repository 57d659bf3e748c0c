"""The test projects that the isolation benchmark runs, written into a folder.

All peers run the same files. A conftest notes, in the pytest process alone, when each test was over
and what the process held then. Children and servers import the same conftest and note nothing: the
process that counts is named by an environment variable.
"""

from __future__ import annotations

from pathlib import Path

PID_ENV = "BENCH_PID"
"""The process whose times count; set by the shell that turns into it."""
NOTES_ENV = "BENCH_NOTES"
"""The file for the notes: JSON, written at the end of the session."""
HEAP_ENV = "BENCH_HEAP_MIB"
"""Memory that the pytest process alone fills after collection, in MiB."""

CONFTEST = """
import json
import os
import time

ENDS = []
HELD = []
HEAP = []


def is_the_one():
    return os.environ.get("BENCH_PID") == str(os.getpid())


def held():
    with open("/proc/self/status") as file:
        fields = dict(line.split(":", 1) for line in file)
    with open("/proc/self/smaps_rollup") as file:
        pss = next(line for line in file if line.startswith("Private_Dirty"))
    return {
        "tests": len(ENDS),
        "rss_kib": int(fields["VmRSS"].split()[0]),
        "private_kib": int(pss.split()[1]),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": int(fields["Threads"]),
    }


def pytest_collection_finish():
    if is_the_one() and os.environ.get("BENCH_HEAP_MIB"):
        # filled, not just reserved: only pages that are there cost a fork anything
        HEAP.append(b"\\x01" * (int(os.environ["BENCH_HEAP_MIB"]) << 20))


def pytest_runtest_logfinish():
    if is_the_one():
        ENDS.append(time.perf_counter())
        if len(ENDS) % 500 == 0:
            HELD.append(held())


def pytest_sessionfinish():
    if is_the_one():
        HELD.append(held())


def pytest_unconfigure():
    if is_the_one():
        with open(os.environ["BENCH_NOTES"], "w") as file:
            json.dump({"ends": ENDS, "held": HELD}, file)
"""

TENTHS_CONFTEST = """
import os

LEFT = []
TICKS = os.sysconf("SC_CLK_TCK")


def spent():
    # by this process, and all that descend from it, the dead ones too where they were reaped
    parents, times = {}, {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(name)] = int(fields[1])
        times[int(name)] = sum(map(int, fields[11:15])) / TICKS
    total = 0
    for pid in times:
        above = pid
        while above not in (0, os.getpid()):
            above = parents.get(above, 0)
        total += times[pid] if above else 0
    return total


def pytest_collection_finish(session):
    LEFT.append(len(session.items))
    LEFT.append(len(session.items) // 10)


def pytest_runtest_logfinish():
    LEFT[0] -= 1
    if LEFT[0] % LEFT[1] == 0:
        with open(os.environ["BENCH_NOTES"], "a") as file:
            file.write(f"{spent()}\\n")
"""
"""Notes in the pytest process the CPU time spent by each tenth of the tests."""

_HEAD = "import torch\n\n\n"
_TEST = "def test_{n}():\n    pass\n\n\n"

SPAWNED_BODY = """
import torch


def body():
    pass
"""

SPAWNED_TESTS = """
import multiprocessing

import torch

import spawned_body


def run(body):
    process = multiprocessing.get_context("spawn").Process(target=body)
    process.start()
    process.join()
    assert process.exitcode == 0


"""


def write_trivial(folder: Path, tests: int, files: int = 4) -> None:
    """Write trivial tests in files that import torch."""
    for number in range(files):
        share = tests // files + (number < tests % files)
        text = _HEAD + "".join(_TEST.format(n=n) for n in range(share))
        _write(folder, f"test_trivial_{number}.py", text)
    _write(folder, "conftest.py", CONFTEST)


def write_spawned(folder: Path, tests: int) -> None:
    """Write tests whose trivial body runs by ``multiprocessing``'s spawn, torch imported there."""
    text = "".join(f"def test_{n}():\n    run(spawned_body.body)\n\n\n" for n in range(tests))
    _write(folder, "spawned_body.py", SPAWNED_BODY)
    _write(folder, "test_spawned.py", SPAWNED_TESTS + text)
    _write(folder, "conftest.py", CONFTEST)


def write_sleeping(folder: Path, tests: int, seconds: float) -> None:
    """Write tests that sleep, in a file that imports torch."""
    text = "".join(f"def test_{n}():\n    time.sleep({seconds})\n\n\n" for n in range(tests))
    _write(folder, "test_sleeping.py", "import time\n\nimport torch\n\n\n" + text)
    _write(folder, "conftest.py", CONFTEST)


def write_bare(folder: Path, tests: int, files: int = 10) -> None:
    """Write trivial tests in files that import nothing."""
    for number in range(files):
        share = tests // files + (number < tests % files)
        _write(folder, f"test_bare_{number}.py", "".join(_TEST.format(n=n) for n in range(share)))
    _write(folder, "conftest.py", CONFTEST)


_CUDA = "torch.ones(8, device='cuda').sum().item()"


def write_cuda(folder: Path, tests: int) -> None:
    """Write tests whose first act is a CUDA tensor, by the plugin's children and by spawn."""
    text = "".join(f"def test_{n}():\n    assert {_CUDA} == 8\n\n\n" for n in range(tests))
    _write(folder, "test_cuda.py", _HEAD + text)
    _write(folder, "spawned_body.py", f"import torch\n\n\ndef body():\n    assert {_CUDA} == 8\n")
    text = "".join(f"def test_{n}():\n    run(spawned_body.body)\n\n\n" for n in range(tests))
    _write(folder, "test_spawned.py", SPAWNED_TESTS + text)
    _write(folder, "conftest.py", CONFTEST)


def _write(folder: Path, name: str, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")
