"""The lines of source files: of those on the disk, in zip files, and in what tools have made up."""

from __future__ import annotations

import functools
import sys
from zipimport import zipimporter

from pytest_cudafork.compat.unpatched import contextlib, io, linecache, os, re, stat
from pytest_cudafork.observe.base.hooking import namespace_of
from pytest_cudafork.observe.story.plain_text import plain

_NO_FILE, _NO_SOURCE = -1.0, -2.0
_MARK = b"\xef\xbb\xbf"
"""With which a file in UTF-8 may begin."""
_CODING = re.compile(rb"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
"""The comment with the encoding of a source file, in one of its first two lines (PEP 263)."""


def source_line(filename: str, lineno: int) -> str:
    """Return the line's text without indentation, or "" when the file cannot be read."""
    lines = lines_of(filename, stamp_of(filename))
    return plain(lines[lineno - 1].strip()) if 0 < lineno <= len(lines) else ""


def stamp_of(filename: str) -> float:
    """When a source file was changed, so that what is known of it is forgotten then.

    Below 0 where there is no such file, or none that is to be read.
    """
    try:
        status = _status_of(filename)
    except OSError:
        return _NO_FILE
    except ValueError:  # code may call its file anything, also what cannot be the name of one
        return _NO_SOURCE
    # A pipe would be waited for, and a device may have no end.
    return status.st_mtime if stat.S_ISREG(status.st_mode) else _NO_SOURCE


def _status_of(filename: str) -> os.stat_result:
    try:
        return os.stat(filename)
    except NotADirectoryError:
        return os.stat(_archive_with(filename))


def _archive_with(filename: str) -> str:
    """Return the file that stands where a path needs a folder, as a zip file does."""
    while not os.path.lexists(filename):
        filename = os.path.dirname(filename)
    return filename


def lines_of(filename: str, stamp: float) -> tuple[str, ...]:
    """Return the lines of a source file that was changed at ``stamp``.

    What is no file is asked of ``linecache``: it knows what tools have made up, and looks for
    relative names on the path.
    """
    try:
        if stamp == _NO_FILE:
            return tuple(linecache.getlines(filename) or _lines_of_compiled(filename))
        return _lines_of_file(filename, stamp) if stamp >= 0 else ()
    except Exception:  # of linecache, which uses what the test may have replaced, and of codecs
        return ()


@functools.lru_cache(maxsize=256)
def _lines_of_file(filename: str, stamp: float) -> tuple[str, ...]:
    """Read a source file as it is on the disk, whatever a test has replaced."""
    try:
        with io.open(filename, "rb") as file:
            data = file.read()
    except NotADirectoryError:
        data = zipimporter(_archive_with(filename)).get_data(filename)
    match = next((m for m in map(_CODING.match, data.split(b"\n", 2)[:2]) if m), None)
    coding = match[1].decode("ascii") if match else "utf-8"
    return tuple(io.StringIO(data.removeprefix(_MARK).decode(coding, "replace"), newline=None))


def _lines_of_compiled(filename: str) -> list[str]:
    """Ask the loader of a module that was compiled elsewhere, before it came into its zip file.

    An egg holds such modules: their code knows only the name of the file that was compiled.
    """
    last = os.path.basename(filename).removesuffix(".py")
    for module in list(sys.modules.values()):
        names = namespace_of(module)
        name, loader = str(names.get("__name__")), names.get("__loader__")
        if type(loader) is not zipimporter or last not in (name.rpartition(".")[2], "__init__"):
            continue
        with contextlib.suppress(ImportError, OSError):  # the zip file is another one by now
            code = loader.get_code(name)
            if code is not None and code.co_filename == filename:
                return (loader.get_source(name) or "").splitlines(keepends=True)
    return []
