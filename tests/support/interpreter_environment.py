"""What of the environment an interpreter reads when it starts, and what of it can be had back."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

_READ_AT_START = re.compile(
    "PYTHON|LD_|LC_|LANG|TZ$|MALLOC_|GLIBC_|COV_|COVERAGE_(?!CORE$)|OMP_|KMP_|MKL_|GOMP_|OPENBLAS|TORCH|PYTORCH_|CUDA|NVIDIA_"
)
# The path is put together anew in each child, and so is whether bytecode is written.
TAKEN_OVER = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
# A server is started for each combination that is asked for again and again; with those of the test
# process one is started at once.
VARIANTS = ("PYTHONHASHSEED", "PYTHONUNBUFFERED")


def setting(environ: Mapping[str, str], name: str) -> str:
    """Return the value of a variable, "" if it is as good as not set."""
    value = environ.get(name, "")
    return "" if (name, value) == ("PYTHONHASHSEED", "random") else value


def read_at_start(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that an interpreter or a library reads when it starts.

    Those are not among them that a server can give to its child, or that it was started with.
    """
    free = (*TAKEN_OVER, *VARIANTS)
    return {k: v for k, v in environ.items() if _READ_AT_START.match(k) and k not in free}


def surroundings(*, new_session: bool) -> dict[str, int] | None:
    """Return what a child takes over from this process beside it; None where a fork cannot give it.

    Args:
        new_session: Whether the child leads a session of its own.

    """
    group = os.getpgid(0)
    # 0: a group outside of this namespace of processes, which no other process here can join
    if not new_session and group == 0:
        return None
    umask = os.umask(0o077)
    os.umask(umask)
    return {"umask": umask, "group": group, "new_session": new_session}


class Environment:
    """The environment as it is now, to be had back in what is read at start."""

    def __init__(self) -> None:
        self._raw = _raw_environment()

    def restore(self) -> None:
        """Undo what has become of the variables that are read at start."""
        if self._raw == _raw_environment():
            return  # as after nearly all tests; there are ten thousand
        before = read_at_start({os.fsdecode(k): os.fsdecode(v) for k, v in self._raw.items()})
        for name in read_at_start(os.environ).keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def _raw_environment() -> dict[bytes, bytes]:
    """Return what ``os.environ`` holds, without decoding each name and value if that can be."""
    raw = dict(getattr(os.environ, "_data", os.environb))
    raw.pop(b"PYTEST_CURRENT_TEST", None)  # another one in each phase of a test
    return raw
