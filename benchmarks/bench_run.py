"""Measures what ``python -m pytest_cudafork run`` costs a program that never touches CUDA.

Three figures, each with the program alone and watched, in turns: the time from its start to its
first line, the CPU time of the same work after that, and the CPU time of all processes together.
The differences are of the smallest values, as a neighbor on a shared machine adds time and never
takes any. The load of the machine stands in the record.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from results_file import parser, publish, table

PROGRAM = """\
import time
first = time.monotonic()
import json, os, re, threading
start = time.process_time()
for number in range(400):
    data = {str(n): [n, str(n)] for n in range(200)}
    text = json.dumps(json.loads(json.dumps(data)))
    re.sub(r"[0-9]+", "x", text)
    thread = threading.Thread(target=len, args=(text,))
    thread.start()
    thread.join()
    os.stat(".")
print(first, time.process_time() - start)
"""
FORKS = """\
import os, time
first = time.monotonic()
start = time.process_time()
for number in range(300):
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
print(first, time.process_time() - start)
"""
KINDS = ("alone", "watched")


def run(program: Path, kind: str, folder: str) -> tuple[float, float, float]:
    """Return the seconds to the first line, of the work, and of all processes in CPU time."""
    command = [sys.executable, str(program)]
    if kind == "watched":
        report = os.path.join(folder, "report")
        command[1:1] = ["-m", "pytest_cudafork", "run", "--report", report]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    first, work = map(float, done.stdout.split())
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return first - start, work, cpu


def main() -> None:
    """Measure, print, and keep the results if that is asked for."""
    options = parser("What `run` costs a program that never touches CUDA.", rounds=15).parse_args()
    rows, data = [], []
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (("work of a kind", PROGRAM), ("300 forks of a bare interpreter", FORKS)):
            program = Path(folder, "program.py")
            program.write_text(text, encoding="utf-8")
            found: dict[str, list[tuple[float, float, float]]] = {kind: [] for kind in KINDS}
            for number in range(options.rounds + 1):
                for kind in KINDS:
                    values = run(program, kind, folder)
                    if number:  # the first round writes bytecode
                        found[kind].append(values)
            alone, watched = (
                [min(column) for column in zip(*found[kind], strict=True)] for kind in KINDS
            )
            start_ms = (watched[0] - alone[0]) * 1e3
            percent = (watched[1] / alone[1] - 1) * 100
            total_ms = (watched[2] - alone[2]) * 1e3
            rows.append([name, f"{start_ms:.0f}", f"{percent:+.1f}", f"{total_ms:.0f}"])
            data.append(
                {"program": name, "start_ms": start_ms, "work_percent": percent, "cpu_ms": total_ms}
            )
    header = ["program", "later first line, ms", "CPU of its work, %", "CPU of all, ms"]
    shown = f"{table(header, rows)}\n\nload of the machine: {load:.1f} before, " + (
        f"{os.getloadavg()[0]:.1f} after, {os.cpu_count()} cores"
    )
    publish("run", "A program under run that never touches CUDA", shown,
            {"rounds": options.rounds, "load": load, "rows": data}, save=options.save)  # fmt: skip


if __name__ == "__main__":
    main()
