"""Measures what ``python -m pytest_cudafork run`` costs a program that never touches CUDA.

Four figures, each with the program alone and watched, in turns: the time from its start to its
first line, the CPU time until then (of the program, and of the command up to where it would start
one), the CPU time of the same work after that, and the CPU time of all processes together. The
differences are of the smallest values, as a neighbor on a shared machine adds time and never takes
any. The load of the machine stands in the record.
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
first, begun = time.monotonic(), time.process_time()
import json, os, re, threading
start = time.process_time()
for number in range(2000):
    data = {str(n): [n, str(n)] for n in range(200)}
    text = json.dumps(json.loads(json.dumps(data)))
    re.sub(r"[0-9]+", "x", text)
    thread = threading.Thread(target=len, args=(text,))
    thread.start()
    thread.join()
    os.stat(".")
print(first, begun, time.process_time() - start)
"""
FORKS = """\
import os, time
first, begun = time.monotonic(), time.process_time()
start = time.process_time()
for number in range(300):
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
print(first, begun, time.process_time() - start)
"""
KINDS = ("alone", "watched")
KEYS = ("program", "start_ms", "start_cpu_ms", "work_percent", "work_ms", "cpu_ms")


def run(program: Path, kind: str, folder: str) -> tuple[float, ...]:
    """Return the seconds to the first line, the CPU time there, of the work, and of everything."""
    command = [sys.executable, str(program)]
    if kind == "watched":
        report = os.path.join(folder, "report")
        command[1:1] = ["-m", "pytest_cudafork", "run", "--report", report]
    start = time.monotonic()
    cpu, output = cpu_of(command, folder)
    first, begun, work = map(float, output.split())
    if kind == "watched":  # all that the command imports before it starts a program
        begun += cpu_of([sys.executable, "-m", "pytest_cudafork", "run", "--help"], folder)[0]
    return first - start, begun, work, cpu


def cpu_of(command: list[str], folder: str) -> tuple[float, str]:
    """Run a command; return the CPU seconds of it and its children, and its output."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def main() -> None:
    """Measure, print, and keep the results if that is asked for."""
    options = parser("What `run` costs a program that never touches CUDA.", rounds=15).parse_args()
    rows, data = [], []
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (("work of a kind", PROGRAM), ("300 forks of a bare interpreter", FORKS)):
            program = Path(folder, "program.py")
            program.write_text(text, encoding="utf-8")
            found: dict[str, list[tuple[float, ...]]] = {kind: [] for kind in KINDS}
            for number in range(options.rounds + 1):
                for kind in KINDS:
                    values = run(program, kind, folder)
                    if number:  # the first round writes bytecode
                        found[kind].append(values)
            alone, watched = (
                [min(column) for column in zip(*found[kind], strict=True)] for kind in KINDS
            )
            later, begun, work, total = (
                (one - other) * 1e3 for one, other in zip(watched, alone, strict=True)
            )
            percent = work / alone[2] / 10
            row = [f"{later:.0f}", f"{begun:.0f}", f"{percent:+.1f}", f"{work:.0f}", f"{total:.0f}"]
            rows.append([name, *row])
            data.append(dict(zip(KEYS, (name, later, begun, percent, work, total), strict=True)))
    header = [
        *("program", "first line later, ms", "CPU until then, ms", "CPU of its work, %"),
        *("the same, ms", "CPU of all, ms"),
    ]
    title = "A program under run that never touches CUDA"
    told = {"rounds": options.rounds, "rows": data}
    publish("run", title, table(header, rows), told, save=options.save)


if __name__ == "__main__":
    main()
