"""Tests that put something else in the place of functions of the standard library.

Which functions is read off the code of the package: all that it uses of the modules in
``compat/unpatched.py``, and by hand what lies below: methods of classes, builtins.
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

from pytest_cudafork.compat.unpatched import OFFERED
from tests.repo.sources import PACKAGE, PROJECT

BESIDE_A_TEST = ("process", "isolate", "call", "compat")
"""Folders of code that isolates a test, and runs while its patches may be in force."""
WATCHING = ("observe", "check", "settings", "compat")
"""Folders of code that watches a test."""
BELOW = (
    "builtins.open",
    "builtins.vars",
    "builtins.zip",
    "json.JSONDecoder",
    "json.JSONDecoder.decode",
    "json.JSONEncoder",
    "json.JSONEncoder.encode",
    "json.JSONEncoder.iterencode",
    "json.dumps",
    "json.encoder.c_make_encoder",
    "json.encoder.encode_basestring_ascii",
    "json.loads",
    "json.scanner.c_make_scanner",
    "socket.recv_fds",
    "socket.send_fds",
    "socket.socket",
    "socket.socket.close",
    "socket.socket.fileno",
    "socket.socket.recvmsg",
    "socket.socket.send",
    "socket.socket.sendall",
    "socket.socket.sendmsg",
    "socket.socketpair",
    "struct.calcsize",
    "subprocess.Popen.poll",
    "subprocess.Popen.wait",
    "time.time",
    "warnings.catch_warnings",
    "warnings.warn",
)
NO_FUNCTIONS = ("os.environ", "os.environb", "ctypes.pythonapi")
ERRORS = ("Error", "Expired")


def used_functions(folders: tuple[str, ...] = BESIDE_A_TEST) -> list[str]:
    """Return the dotted names of the functions that the package uses beside a test."""
    names = set(BELOW)
    for folder in folders:
        for path in (PROJECT / PACKAGE / folder).rglob("*.py"):
            names |= {name for name in _attributes(path) if _is_function(name)}
    return sorted(names)


def _attributes(path: Path) -> set[str]:
    """Return what a module uses of the modules on offer: "os.getpid", "os.path.join"."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            if name.partition(".")[0] in OFFERED and not name.startswith(NO_FUNCTIONS):
                found.add(name)
    return found


def _is_function(name: str) -> bool:
    owner: Any = importlib.import_module(name.partition(".")[0])
    *path, last = name.split(".")[1:]
    for part in path:
        owner = getattr(owner, part, None)
    if not isinstance(owner, ModuleType | type):  # os.sep.join
        return False
    return callable(getattr(owner, last, None)) and not name.endswith(ERRORS)


HELPER = """
import importlib


def _owner_of(name):
    first, *rest, last = name.split(".")
    path, owner = first, importlib.import_module(first)
    for part in rest:
        path = f"{path}.{part}"
        owner = getattr(owner, part, None) or importlib.import_module(path)
    return owner, last


def prepare(names):
    return {name: (*_owner_of(name), _broken(name)) for name in names}


def _broken(name):
    owner, last = _owner_of(name)

    def broken(*args, **kwargs):
        raise AssertionError(f"{name} is the test's own by now")

    if isinstance(getattr(owner, last), type):  # somebody may ask whether a thing is one
        return type(last, (), {"__new__": broken})
    return broken


def patch(prepared, set=setattr):
    for owner, last, broken in prepared.values():
        set(owner, last, broken)
"""
"""A module for sessions under test, to be written as ``replacing.py``."""
