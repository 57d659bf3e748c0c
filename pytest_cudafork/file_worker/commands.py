"""What is said to the file worker and by it: one JSON object a line.

``{"filename": "test_x.py"}`` asks for a file (``"timeout": seconds`` may be added), and
``{"command": "stop"}`` ends the worker. An answer is ``{"filename": ..., "returncode": ...,
"elapsed": ...}``, with ``"why"`` where the return code does not say it all.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from pytest_cudafork.settings.arguments import is_c_string

_LONGEST_SHOWN = 120
_KEYS = ("filename", "timeout")


@dataclass(frozen=True)
class RunFile:
    """A file to run, and how many seconds it may take; None: as long as the others."""

    filename: str
    timeout: float | None = None


@dataclass(frozen=True)
class Stop:
    """There is nothing more to do."""


@dataclass(frozen=True)
class Answer:
    """How a file ended.

    Attributes:
        filename: As it was asked for.
        returncode: Its exit status; 128 and the signal's number if a signal killed it.
        elapsed: Seconds from the question to the end.
        why: What happened, where the return code does not say it all.

    """

    filename: str
    returncode: int
    elapsed: float
    why: str = ""

    def line(self) -> bytes:
        """Return it as a line of JSON."""
        told: dict[str, Any] = dict(vars(self))
        if not self.why:
            del told["why"]
        return (json.dumps(told) + "\n").encode("ascii")


def read(line: bytes) -> RunFile | Stop:
    """Read one line.

    Raises:
        ValueError: It is nothing that can be asked for; the message says what is wrong with it.

    """
    if not line.strip():
        raise ValueError('an empty line asks for nothing: write {"filename": "test_x.py"}')
    shown = ascii(line.strip()[:_LONGEST_SHOWN])[1:]
    try:
        command = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{shown} is no JSON ({error})") from None
    if not isinstance(command, dict):
        raise ValueError(f'{shown} is no JSON object: write {{"filename": "test_x.py"}}')
    if command == {"command": "stop"}:
        return Stop()
    unknown = [name for name in command if name not in _KEYS]
    if unknown:
        raise ValueError(
            f"{shown} asks for something unknown ({', '.join(map(repr, unknown))}): there are "
            '"filename" with "timeout", and {"command": "stop"}'
        )
    filename, timeout = command.get("filename"), command.get("timeout")
    if not (isinstance(filename, str) and filename and is_c_string(filename)):
        raise ValueError(f'{shown} names no file: write {{"filename": "test_x.py"}}')
    if timeout is not None:
        timeout = _seconds(timeout, shown)
    return RunFile(filename, timeout)


def _seconds(timeout: object, shown: str) -> float:
    is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if not (is_number and 0 < timeout < math.inf):  # type: ignore[operator]
        raise ValueError(f"{shown}: the timeout is not a number of seconds above 0")
    return float(timeout)  # type: ignore[arg-type]
