"""Writing a file that others wait for: all of it at once, or as it is into a pipe or a device."""

from __future__ import annotations

import re
from typing import Any

from pytest_cudafork.compat.unpatched import contextlib, io, os

_HALF = re.compile("[\ud800-\udfff]")


def json_text(document: Any, indent: int | None = 1) -> str:
    """Return plain data as JSON that every reader takes, with a line's end.

    A file name that is no UTF-8 has surrogates, which many readers refuse even as escapes: they are
    shown by their numbers instead, as everywhere in the terminal.
    """
    import json

    text = json.dumps(document, indent=indent, ensure_ascii=False)
    return _HALF.sub(lambda found: f"\\\\u{ord(found[0]):04x}", text) + "\n"


def write_at_once(path: str, text: str) -> None:
    """Write a file at once, so that who waits for it never reads a part.

    A link stays one.

    Raises:
        OSError: It cannot be written. What was there before is still there, unless only the file
            itself could be opened.

    """
    # A pipe or a device is written as it is, by the name that was given: what /dev/stdout leads
    # to has none of its own.
    whole = os.path.isfile(path) or not os.path.exists(path)
    if not (whole and _replaced(os.path.realpath(path), text)):
        with io.open(path, "w", encoding="utf-8") as file:
            file.write(text)


def _replaced(path: str, text: str) -> bool:
    """Whether the file could be made anew and put in the place of the old one.

    The folder may take no new file, and a file that is mounted cannot be replaced, while the file
    itself may be written.
    """
    beside = f"{path}.{os.getpid()}"
    try:
        file = io.open(beside, "x", encoding="utf-8")
    except OSError:
        return False
    try:
        with file:
            file.write(text)
        try:
            os.replace(beside, path)
        except OSError:
            os.unlink(beside)
            return False
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise
    return True
