"""Runs scripts against the native libraries, each in a process of its own, and reads the ledger.

A process is needed each time: a mapped driver cannot be unmapped, and the state is the process's.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_cudafork.observe.driver import native_libs
from tests.support import interpreters
from tests.support.sessions import TIME_LIMIT

ROOT = Path(native_libs.__file__).parents[3]
VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")

needs_libraries = pytest.mark.skipif(bool(native_libs.why_not()), reason=native_libs.why_not())

PRELUDE = """\
import ctypes, json, os, sys, threading
from pytest_cudafork.observe.driver import injection, native_libs, phantom
"""


@dataclass(frozen=True)
class Outcome:
    """What a script printed and what the ledger holds after it."""

    status: int
    out: str
    err: str
    touches: list[dict[str, Any]]

    @property
    def only(self) -> dict[str, Any]:
        """The one touch there is."""
        assert len(self.touches) == 1, self.touches
        return self.touches[0]


class Scripts:
    """Scripts in a temporary directory with one ledger."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ledger = folder / "ledger.jsonl"
        self.ledger.touch()
        self.file = folder / "script.py"

    def environment(self, **extra: str) -> dict[str, str]:
        """Return a script's environment: ours without traces of a session that runs this test."""
        kept = {k: v for k, v in os.environ.items() if "CUDAFORK" not in k}
        for name in ("CUDA_INJECTION64_PATH", "LD_LIBRARY_PATH", "TRITON_LIBCUDA_PATH"):
            kept.pop(name, None)
        kept.update(PYTHONPATH=str(ROOT), _CUDAFORK_LEDGER=str(self.ledger))
        return {**kept, **extra}

    def run(self, script: str, *args: str, python: str = sys.executable, **env: str) -> Outcome:
        """Run a script after `PRELUDE`, which takes the first two lines of the file."""
        self.file.write_text(PRELUDE + textwrap.dedent(script), encoding="utf-8")
        return self.execute([python, str(self.file), *args], **env)

    def execute(self, command: list[str], **env: str) -> Outcome:
        """Run a command in the scripts' environment."""
        done = interpreters.run(
            command,
            cwd=self.folder,
            env=self.environment(**env),
            start_new_session=True,  # so that a hang is ended with all its children
            timeout=TIME_LIMIT,
            fresh="the libraries are about a process from its start",
        )
        touches = self.touches() if self.ledger.exists() else []
        return Outcome(done.returncode, done.stdout, done.stderr, touches)

    def touches(self) -> list[dict[str, Any]]:
        """Every whole record of the ledger."""
        lines = self.ledger.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def line_of(self, text: str) -> int:
        """Return the number of the script's line that holds `text`."""
        lines = self.file.read_text(encoding="utf-8").splitlines()
        found = [number for number, line in enumerate(lines, 1) if text in line]
        assert len(found) == 1, (text, found)
        return found[0]


def compile_c(source: str, output: Path, *flags: str) -> None:
    """Compile C text, or skip the test where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler here")
    output.with_suffix(".c").write_text(source, encoding="utf-8")
    command = [compiler, "-O1", "-g", "-Wall", *flags, "-o", str(output)]
    subprocess.run([*command, str(output.with_suffix(".c")), "-ldl", "-pthread"], check=True)


def interpreter(version: str) -> str:
    """Return the path of that Python; skip the test where there is none."""
    if version == ".".join(map(str, sys.version_info[:2])):
        return sys.executable
    found = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    path = str(found[-1]) if found else shutil.which(f"python{version}")
    if path is None:
        pytest.skip(f"no Python {version} here")
    return path
