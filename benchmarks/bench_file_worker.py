"""Measures test files that import torch: by Python one after another, and by a file worker.

The files are alike: a unittest file with one test on a tensor. The worker's time includes that of
its template, which imports torch once. Of the rounds the smallest values count, as a neighbor on a
shared machine adds time and never takes any.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from arguments import at_least
from results_file import parser, publish, table

FILE = """\
import unittest

import torch


class Sums(unittest.TestCase):
    def test_ones(self):
        self.assertEqual(torch.ones({number}).sum().item(), {number})


unittest.main()
"""
Run = Callable[[Sequence[str]], None]


def by_python(files: Sequence[str]) -> None:
    """Run each file in an interpreter of its own, as a suite without a worker does."""
    for file in files:
        subprocess.run([sys.executable, file, "-f"], check=True, stderr=subprocess.DEVNULL)


def by_worker(files: Sequence[str]) -> None:
    """Run all files through one worker, which is driven as SGLang's driver does it."""
    read, write = os.pipe()
    command = [sys.executable, "-m", "pytest_cudafork", "fileworker", "--preload", "torch"]
    worker = subprocess.Popen(
        [*command, "--result-fd", str(write)],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        pass_fds=(write,),
    )
    os.close(write)
    with worker, os.fdopen(read) as answers:
        assert worker.stdin is not None
        for file in files:
            print(json.dumps({"filename": file}), file=worker.stdin, flush=True)
            answer = json.loads(answers.readline() or "{}")
            if answer.get("returncode") != 0:
                raise SystemExit(f"{file}: {answer or 'no answer'}")
        worker.stdin.close()


WAYS: dict[str, Run] = {"python": by_python, "worker": by_worker}


def main() -> None:
    """Measure, print, and keep the results if that is asked for."""
    made = parser("Test files that import torch, by Python and by a file worker.", rounds=3)
    made.add_argument("--files", type=at_least(1), default=6, help="default 6")
    options = made.parse_args()
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for number in range(1, options.files + 1):
            file = Path(folder, f"test_{number}.py")
            file.write_text(FILE.format(number=number), encoding="utf-8")
            files.append(str(file))
        for _ in range(options.rounds):
            for name, run in WAYS.items():
                start = time.monotonic()
                run(files)
                found[name].append(time.monotonic() - start)
    least = {name: min(seconds) for name, seconds in found.items()}
    rows = [[name, f"{least[name]:.1f}", f"{max(found[name]):.1f}"] for name in WAYS]
    publish(
        "file_worker",
        f"{options.files} test files that import torch",
        table(["by", "least, s", "most, s"], rows),
        {
            "rounds": options.rounds,
            "files": options.files,
            "seconds": found,
            "ratio": least["worker"] / least["python"],
        },
        save=options.save,
    )


if __name__ == "__main__":
    main()
