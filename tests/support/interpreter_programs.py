"""What a command runs, and what a server has to have imported, or not, to run it as well."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_IMPORTED = frozenset(sys.stdlib_module_names) | {
    *("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "exceptiongroup"),
    *("cloudpickle", "filelock", "sitecustomize", "usercustomize"),
}
# The names of their entry points.
_LEFT_OUT = ("-pno:hypothesispytest", "-pno:anyio", "-pno:platformdirs")
_ENDINGS = ("", "py", "so")  # of packages, which are folders, and modules
_MOST_FILES = 50


@dataclass(frozen=True)
class Program:
    """What a command runs: ``-m`` a module, ``-c`` a text, or ``""`` a script."""

    kind: str
    what: str
    args: tuple[str, ...]


def program_of(command: Sequence[str]) -> Program | None:
    """Return what a command runs; None if it is not this Python without options."""
    if len(command) < 2 or command[0] != sys.executable:
        return None
    first, rest = command[1], command[2:]
    if first in ("-m", "-c"):
        return Program(first, rest[0], tuple(rest[1:])) if rest else None
    if first.startswith("-m"):
        return Program("-m", first[2:], tuple(rest))
    return None if first.startswith("-") else Program("", first, tuple(rest))


def without_slow_plugins(command: Sequence[str]) -> Sequence[str]:
    """Return a command without the plugins that take long to load, if it is a pytest session."""
    program = program_of(command)
    if program is None or (program.kind, program.what) != ("-m", "pytest"):
        return command
    return [command[0], "-m", "pytest", *_LEFT_OUT, *program.args]


def hides_imported(program: Program, request: Mapping[str, Any]) -> bool:
    """Whether a file on the child's path comes before a module that the server has imported."""
    first = os.path.dirname(os.path.join(request["cwd"], program.what)) if not program.kind else ""
    folders = [first or ".", *request["environ"].get("PYTHONPATH", "").split(os.pathsep)]
    for folder in filter(None, folders):
        try:
            names = os.listdir(os.path.join(request["cwd"], folder))
        except OSError:
            continue
        modules = (name.partition(".") for name in names)
        if any(name in _IMPORTED and ending in _ENDINGS for name, _, ending in modules):
            return True
    return False


def mentions_torch(program: Program, cwd: str) -> bool:
    """Whether the child is likely to import torch; a wrong guess costs time, no more."""
    if "torch" in " ".join([program.what, *program.args]):
        return True
    files = [Path(cwd, program.what)] if program.kind == "" else []
    for file in itertools.chain(files, itertools.islice(Path(cwd).rglob("*.py"), _MOST_FILES)):
        try:
            if b"torch" in file.read_bytes():
                return True
        except OSError:
            continue
    return False


@functools.cache
def torch_can_be_imported() -> bool:
    """Whether torch is here, is a build for the CPU, and is best imported ahead.

    A build for GPUs would load the driver, and what loads it is what many tests are about.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None or os.path.exists("/dev/nvidiactl"):
        return False
    version = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    return re.search(r"^cuda\b.*= None$", version, re.MULTILINE) is not None
