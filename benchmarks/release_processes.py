"""Starts a program in the environment of a release, and reads what our check has written of it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from release_environments import environ

_SECONDS = 1200.0


def started(command: Sequence[str], folder: Path, variables: Mapping[str, str]) -> str:
    """Run a command in a folder; return the last line that it wrote, or that it took too long."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environ() | dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"it took longer than {_SECONDS:g} s"
    return next(iter(done.stdout.strip().splitlines()[-1:]), "it wrote nothing")


def written(file: Path) -> Mapping[str, Any] | None:
    """Return a document that was written; None if there is none, or it is no JSON."""
    try:
        document: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document
