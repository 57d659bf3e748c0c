"""Writing several files, each of which tells of those that could not be written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import NamedTuple

from pytest_cudafork.documents.writing import descriptor_of
from pytest_cudafork.observe.story.plain_text import plain


class OutFile(NamedTuple):
    """A file to write.

    Attributes:
        what: What it is, as an error calls it.
        path: Where it goes.
        write: Writes it; is given the words of those that could not be written.
        once: Whether it must not be written again, as what is appended.

    """

    what: str
    path: str
    write: Callable[[tuple[str, ...]], None]
    once: bool = False


def write_files(files: Iterable[OutFile]) -> tuple[list[str], list[str]]:
    """Write files, those again that were written before another failed.

    A pipe, a device and what is appended are written once, after all others.

    Returns:
        What was written, one line each; and what could not be, in words.

    """
    given = list(files)
    order = sorted(given, key=is_written_once)
    failures: dict[OutFile, str] = {}
    told: dict[OutFile, tuple[str, ...]] = {}
    changed = True
    while changed:
        changed = False
        for file in order:
            known = tuple(failures.values())
            settled = file in told and (told[file] == known or is_written_once(file))
            if file in failures or settled:
                continue
            told[file] = known
            changed = True
            try:
                file.write(known)
            except (OSError, ValueError) as error:  # the latter: a name or text without encoding
                why = getattr(error, "strerror", None) or str(error)
                failures[file] = f"the {file.what} file {plain(file.path)} cannot be written: {why}"
    written = [f"{file.what}: {file.path}" for file in given if file not in failures]
    return written, list(failures.values())


def is_written_once(file: OutFile) -> bool:
    """Whether a file cannot be written again: it is appended to, a pipe, a device, or open here."""
    if file.once or descriptor_of(file.path) is not None:
        return True
    return os.path.exists(file.path) and not os.path.isfile(file.path)
