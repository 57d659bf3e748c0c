"""Tries an installed wheel: cibuildwheel runs this where the wheel was built for.

The first command names the line of a program that initializes CUDA, the second one is a session in
which a fork must be refused.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

APP = "import ctypes\nctypes.CDLL('libcuda.so.1').cuInit(0)\n"
TEST = f"{APP}import os\n\n\ndef test_fork():\n    if os.fork() == 0:\n        os._exit(0)\n"
TRIED = (
    (("pytest_cudafork", "run", "app.py"), 0, ("app.py:2", "cuInit")),
    (("pytest", "--cuda-fork-check", "test_app.py"), 1, ("fork refused", "test_app.py:2")),
)


def main() -> int:
    """Run both; the exit status is 1 where one does not say what it must."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "app.py").write_text(APP, encoding="utf-8")
        Path(folder, "test_app.py").write_text(TEST, encoding="utf-8")
        for command, status, words in TRIED:
            done = subprocess.run(
                [sys.executable, "-m", *command],
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            if done.returncode != status or not all(word in done.stdout for word in words):
                sys.stderr.write(f"{' '.join(command)}: {done.returncode}\n{done.stdout}\n")
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
