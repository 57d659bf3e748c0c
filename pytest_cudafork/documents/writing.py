"""Writing for others: text and JSON to standard output, and files that somebody waits for.

A file is written all at once, or as it is where it is a pipe or a device.
"""

from __future__ import annotations

import re
import sys
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


def print_json(document: Any) -> None:
    """Write plain data to standard output as JSON, in ASCII: its encoding may be any."""
    import json

    sys.stdout.write(json.dumps(json.loads(json_text(document)), indent=1) + "\n")


def printable(text: str) -> str:
    """Return a text as standard output can take it: what its encoding lacks is a question mark."""
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)


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
