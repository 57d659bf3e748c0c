"""Runs a benchmark as a user would and reads its last line, which is JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

_FOREIGN = (
    "PYTEST_",
    "_CUDAFORK_",
    "PYTHON",
)  # users have compiled modules, and no settings of ours
_SHOWN = 5  # lines of an error
_LATE_SECONDS = 5.0  # what it has left behind may keep its stderr open


def last_line(
    python: str | Path,
    command: Sequence[str],
    folder: Path,
    seconds: float,
    *,
    aloud: bool = False,
    more: Mapping[str, str] | None = None,
) -> tuple[int, Mapping[str, Any]]:
    """Run a command after ``python``; return its exit status and its last line.

    Args:
        python: the interpreter.
        command: what comes after it.
        folder: where it runs.
        seconds: after which it is ended.
        aloud: whether what it says on stderr is shown as it comes.
        more: variables of its environment.

    Raises:
        RuntimeError: its last line is no JSON, or the time was over.

    """
    said: deque[str] = deque(maxlen=_SHOWN)
    kept = {key: value for key, value in os.environ.items() if not key.startswith(_FOREIGN)}
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as out:
        process = subprocess.Popen(
            [str(Path(python).absolute()), *command],
            cwd=folder,
            env={**kept, **(more or {})},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
        )
        assert process.stderr is not None
        reader = threading.Thread(target=_keep, args=(process.stderr, said, aloud), daemon=True)
        reader.start()
        try:
            status = process.wait(seconds)
        except BaseException as error:
            process.kill()
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise RuntimeError(f"{' '.join(command)} was ended after {seconds:g} s") from None
            raise
        reader.join(_LATE_SECONDS)
        out.seek(0)
        lines = out.read().splitlines()
    try:
        return status, json.loads(lines[-1])
    except (IndexError, ValueError) as error:
        end = "".join(said).strip() or "\n".join(lines[-_SHOWN:])
        raise RuntimeError(f"{' '.join(command)} ended with {status}: {end}") from error


def _keep(stream: IO[str], said: deque[str], aloud: bool) -> None:
    """Keep the last lines of a stream, and show all of them."""
    with stream:
        for line in stream:
            said.append(line)
            if aloud:
                sys.stderr.write(line)
                sys.stderr.flush()
