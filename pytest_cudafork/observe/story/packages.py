"""Which installed package a file belongs to, by its path alone."""

from __future__ import annotations

import functools

from pytest_cudafork.compat.unpatched import re

_STDLIB = re.compile(r"[/\\]lib(?:64)?[/\\]python3\.\d+t?[/\\](?!site-packages|dist-packages)")
_SITE = re.compile(r"[/\\](?:site|dist)-packages[/\\]")


@functools.lru_cache(maxsize=4096)
def package_of(filename: str) -> str:
    """Return the top-level package of an installed library, "" for code that is not installed.

    Frozen importlib and the standard library answer "<stdlib>".
    """
    if filename.startswith("<frozen"):
        return "<stdlib>"
    # The innermost site-packages counts: an environment may live below another one.
    parts = _SITE.split(filename)
    if len(parts) > 1:
        return re.split(r"[/\\]", parts[-1])[0].removesuffix(".py")
    if _STDLIB.search(filename):
        return "<stdlib>"
    return ""
