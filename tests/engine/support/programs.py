"""Programs that use the engine, each in an interpreter of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap

from tests.engine.support.process import HANG_SECONDS, PROJECT
from tests.support import interpreters

__all__ = ["run_python"]


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    """Run a program that finds the engine, and return how it ended and what it wrote."""
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return interpreters.run(command, cwd=PROJECT, timeout=HANG_SECONDS)
