"""Writing for others: text and JSON to standard output, and files that somebody waits for.

A file is written all at once, or as it is where it is a pipe, a device or an open descriptor.
"""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Iterator
from typing import IO, Any

from pytest_cudafork.compat.unpatched import contextlib, io, os, stat

_HALF = re.compile("[\ud800-\udfff]")
_MOST_LINKS = 40
"""As many as the kernel follows."""


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


class NotReplaced(OSError):
    """No other file can be put in the place of one, which itself may be writable."""


def write_at_once(path: str | os.PathLike[str], text: str, errors: str = "strict") -> None:
    """Write a file at once, so that who waits for it never reads a part.

    A link stays one, and so do the permissions of a file that was there.

    Args:
        path: Its name.
        text: What it is to hold.
        errors: What becomes of text that UTF-8 cannot hold, as in ``open``.

    Raises:
        OSError: It cannot be written, and names the file. What was there before is still there,
            unless only the file itself could be opened.

    """
    # A pipe or a device is written as it is, by the name that was given: what /dev/stdout leads
    # to has none of its own, or is somebody's log.
    if _is_plain_or_new(path):
        with contextlib.suppress(NotReplaced):
            replace(path, text, errors)
            return
    with _named_in_errors(path), opened_anew(path, errors) as file:
        file.write(text)


@contextlib.contextmanager
def _named_in_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Let an error say which file it is about: that of a write on a full disk does not."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = os.fspath(path)
        raise


def replace(path: str | os.PathLike[str], text: str, errors: str = "strict") -> None:
    """Make a file anew and put it in the place of the old one, or leave that as it is.

    A link stays one, and so do the permissions of a file that was there. The arguments are those of
    ``write_at_once``.

    Raises:
        NotReplaced: The folder takes no new file, or the file none in its place, as one that is
            mounted.
        OSError: It cannot be written.

    """
    target = os.path.realpath(path)
    beside = f"{target}.{os.urandom(4).hex()}"
    try:
        file = io.open(beside, "x", encoding="utf-8", errors=errors)
    except OSError as error:
        raise NotReplaced(*error.args) from error
    try:
        with _named_in_errors(path), file:
            with contextlib.suppress(OSError):  # there was none, or the file system has none
                os.chmod(beside, stat.S_IMODE(os.stat(target).st_mode))
            file.write(text)
        try:
            os.replace(beside, target)
        except OSError as error:
            raise NotReplaced(*error.args) from error
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise


def try_to_write(path: str) -> None:
    """Make a file, or empty it, to know now whether it can be written later.

    A pipe is left alone: who reads it would take that for its end. So is an open descriptor.

    Raises:
        OSError: It cannot be written.

    """
    if _is_plain_or_new(path):
        opened_anew(path).close()


def _is_plain_or_new(path: str | os.PathLike[str]) -> bool:
    if descriptor_of(path) is not None:
        return False
    return os.path.isfile(path) or not os.path.exists(path)


def descriptor_of(path: str | os.PathLike[str]) -> int | None:
    """Return the descriptor of this process that a name such as /dev/stdout stands for, if any.

    What is open there may be a file that others write to as well, such as a log.
    """
    own = os.path.realpath("/proc/self/fd")
    name = os.path.abspath(path)
    for _ in range(_MOST_LINKS):
        folder, last = os.path.split(name)
        if last.isdecimal() and os.path.realpath(folder) == own:
            return int(last)
        if not os.path.islink(name):
            return None
        name = os.path.join(folder, os.readlink(name))
    return None


def opened_anew(path: str | os.PathLike[str], errors: str = "strict") -> IO[str]:
    """Open a file to be written anew; a pipe that nobody reads is not waited for.

    A descriptor of this process goes on where it is, behind what this process has written there.

    Args:
        path: Its name.
        errors: What becomes of text that UTF-8 cannot hold, as in ``open``.

    Raises:
        OSError: It cannot be opened.

    """
    descriptor = descriptor_of(path)
    if descriptor is not None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, OSError, ValueError):  # none, full, closed
                stream.flush()
        return io.open(os.dup(descriptor), "w", encoding="utf-8", errors=errors)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        fd = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno == errno.ENXIO and stat.S_ISFIFO(os.stat(path).st_mode):
            raise OSError(errno.ENXIO, "nobody reads this pipe", os.fspath(path)) from None
        raise
    os.set_blocking(fd, True)
    return io.open(fd, "w", encoding="utf-8", errors=errors)
