"""The GPU core dump that the driver writes at an error, where the user has asked for one."""

from __future__ import annotations

import glob

from pytest_cudafork.compat.unpatched import os
from pytest_cudafork.settings import environment

_DEFAULT = "core_%t_%h_%p*.nvcudmp"
"""What the driver calls its files: time, host, process."""


def is_asked_for() -> bool:
    """Whether the driver writes a GPU core dump when a kernel fails."""
    return environment.value(environment.CORE_DUMP, "0").strip() not in ("", "0")


def written_since(moment: float) -> str:
    """Return the path of the newest core dump that was written after a moment (``time.time``)."""
    given = environment.value(environment.CORE_DUMP_FILE)
    pattern = glob.escape(given) if given else _DEFAULT  # a folder may be called "build[1]"
    host = os.uname().nodename
    for word, value in (("%p", str(os.getpid())), ("%h", glob.escape(host)), ("%t", "*")):
        pattern = pattern.replace(word, value)
    dumps = []
    for path in glob.glob(pattern):
        try:
            changed = os.stat(path).st_mtime
        except OSError:  # removed meanwhile
            continue
        if changed >= moment - 1.0:  # file systems round
            dumps.append((changed, os.path.abspath(path)))
    return max(dumps)[1] if dumps else ""
