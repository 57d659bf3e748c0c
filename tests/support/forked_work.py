"""Work that a test does in a forked child, which ends without ``atexit``."""

from __future__ import annotations

import os
from collections.abc import Callable


def do_in_child(work: Callable[[], object]) -> None:
    """Do it in a forked child, and wait for that; it must not raise."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
