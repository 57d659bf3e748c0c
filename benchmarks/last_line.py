"""Runs a benchmark as a user would and reads its last line, which is JSON."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_FOREIGN = (
    "PYTEST_",
    "_CUDAFORK_",
    "PYTHON",
)  # users have compiled modules, and no settings of ours
_SHOWN = 500


def last_line(
    python: str | Path,
    command: Sequence[str],
    folder: Path,
    seconds: float,
    *,
    aloud: bool = False,
) -> tuple[int, Mapping[str, Any]]:
    """Run a command after ``python``; return its exit status and its last line.

    Args:
        python: the interpreter.
        command: what comes after it.
        folder: where it runs.
        seconds: after which it is ended.
        aloud: whether what it says on stderr is shown as it comes.

    Raises:
        RuntimeError: its last line is no JSON, or the time was over.

    """
    try:
        done = subprocess.run(
            [str(Path(python).absolute()), *command],
            cwd=folder,
            env={key: value for key, value in os.environ.items() if not key.startswith(_FOREIGN)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=None if aloud else subprocess.PIPE,
            text=True,
            check=False,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{command[0]} was ended after {seconds:g} s") from None
    try:
        return done.returncode, json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError) as error:
        end = (done.stderr or done.stdout).strip()[-_SHOWN:]
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {end}") from error
