"""A patch as it travels: what is patched, by names, and with what, pickled; and the file of them.

The file lies in a folder of its own, which the environment names: each process that patches has
one, in the folder of the test. A process that cannot apply a patch says so in a file beside these.
"""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass
from typing import Any

from pytest_cudafork.compat.unpatched import contextlib, io, os, pickle
from pytest_cudafork.process.protocol import frames

_PATCHES = "patches"
_COMPLAINTS = "complaints"
ENVIRONMENT = ("setenv", "delenv")
"""The patches of variables, which the environment of a process carries by itself."""


@dataclass(frozen=True)
class Record:
    """One patch.

    Attributes:
        kind: "setattr", "delattr", "setitem", "delitem", "setenv" or "delenv".
        module: The module that has the object; "" for a variable.
        path: The names from there on, as a dotted text; the variable.
        key: The pickle of the key of an item.
        value: The pickle of the new value; the text of a variable.
        raising: Whether what is replaced has to be there.
        search: Where the process that patches looks for modules; the key and the value may be of
            one that other processes do not find, such as a helper beside the test file.

    """

    kind: str
    module: str
    path: str
    key: bytes = b""
    value: bytes = b""
    raising: bool = True
    search: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the call that made it, as far as messages need it."""
        target = f"{self.module}.{self.path}" if self.module else self.path
        key = ""
        if self.key:
            with contextlib.suppress(Exception):  # what the key needs is not here
                key = f", {pickle.loads(self.key)!r}"
        return f"child_patch.{self.kind}({target!r}{key})"


def make_folder(test_folder: str) -> str:
    """Make a folder for the patches of this process, in that of the test."""
    for number in itertools.count():
        folder = os.path.join(test_folder, f"{os.getpid()}-{number}")
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
            return folder
    raise AssertionError


def write(folder: str, records: list[Record]) -> None:
    """Write all patches; a process that reads meanwhile finds these or those before."""
    path = os.path.join(folder, _PATCHES)
    with io.open(f"{path}.new", "wb") as file:
        file.write(frames.dumps([asdict(one) for one in records]))
    os.replace(f"{path}.new", path)


def read(folder: str) -> list[Record]:
    """Return the patches of a folder.

    Raises:
        FileNotFoundError: The test that they belong to is over.

    """
    with io.open(os.path.join(folder, _PATCHES), "rb") as file:
        plain: Any = frames.loads(file.read())
    return [Record(**{**one, "search": tuple(one["search"])}) for one in plain]


def complain(folder: str, text: str) -> None:
    """Let the test know of a patch of this folder that this process cannot apply."""
    with contextlib.suppress(OSError):  # it is over: nobody asks any more
        fd = os.open(
            os.path.join(os.path.dirname(folder), _COMPLAINTS),
            os.O_WRONLY | os.O_APPEND | os.O_CREAT,
            0o600,
        )
        try:
            os.write(fd, f"process {os.getpid()}: {text}\n".encode("utf-8", "replace"))
        finally:
            os.close(fd)


def take_complaints(test_folder: str) -> str:
    """Return what processes have complained of since this was asked, a line each."""
    path = os.path.join(test_folder, _COMPLAINTS)
    try:
        with io.open(path, encoding="utf-8") as file:
            text = file.read().strip()
    except FileNotFoundError:
        return ""
    os.unlink(path)
    return text
