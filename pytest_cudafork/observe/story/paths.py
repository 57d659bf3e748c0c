"""Paths as a reader gets them: short, and still clear."""

from __future__ import annotations

from pytest_cudafork.compat.unpatched import os, re
from pytest_cudafork.observe.story.plain_text import plain
from pytest_cudafork.observe.story.touch import Frame

_SITE = re.compile(r".*[/\\](?:site|dist)-packages[/\\]")
_STDLIB = re.compile(r".*[/\\]lib(?:64)?[/\\](python3\.\d+t?[/\\])(?!site-packages|dist-packages)")


def short_path(filename: str, base: str | None = None) -> str:
    """Shorten a path as far as it stays clear: relative to ``base``, or from site-packages on."""
    return plain(_shortened(filename, base))


def _shortened(filename: str, base: str | None) -> str:
    if filename.startswith("<"):
        return filename
    site = _SITE.sub("", filename)
    if site != filename:
        return site
    base = base or _working_directory()
    if base and filename.startswith(base.rstrip(os.sep) + os.sep):
        return filename[len(base.rstrip(os.sep)) + 1 :]
    return _STDLIB.sub(r"\1", filename)


def _working_directory() -> str:
    """The current directory; "" where it has been removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def location(frame: Frame) -> str:
    """``path:line`` of a frame, path shortened."""
    return f"{short_path(frame.filename)}:{frame.lineno}"
