"""Two decorators that give a test function a process of its own, as test suites write them.

They follow the description of the helpers in vLLM's ``tests/utils.py``: the first forks, takes an
exit status of 0 for success and then ends the process group; the second runs the function in a
fresh interpreter and raises RuntimeError if that fails. Fixtures are not isolated.
"""

from __future__ import annotations

import functools
import inspect
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import Any

import pytest

_RUN = """\
import importlib.util, pickle, sys
path, name, arguments = pickle.loads(sys.stdin.buffer.read())
spec = importlib.util.spec_from_file_location("of_the_test", path)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
getattr(module, name).__wrapped__(**arguments)
"""


def by_fork(function: Callable[..., None]) -> Callable[..., None]:
    """Run a test function in a fork."""

    @functools.wraps(function)
    def isolated(**arguments: Any) -> None:
        os.setpgrp()
        with tempfile.NamedTemporaryFile("w+") as told:
            pid = os.fork()
            if pid == 0:
                status = 0
                try:
                    function(**arguments)
                except pytest.skip.Exception:
                    pass
                except Exception:
                    status = 1
                    told.write(traceback.format_exc())
                    told.flush()
                os._exit(status)
            _, ended = os.waitpid(pid, 0)
            before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.killpg(os.getpgrp(), signal.SIGTERM)
            signal.signal(signal.SIGTERM, before)
            told.seek(0)
            assert ended == 0, f"the process of the test ended with {ended}\n{told.read()}"

    return isolated


def by_spawn(function: Callable[..., None]) -> Callable[..., None]:
    """Run a test function in a fresh interpreter."""

    @functools.wraps(function)
    def isolated(**arguments: Any) -> None:
        job = pickle.dumps((inspect.getfile(function), function.__name__, arguments))
        done = subprocess.run(
            [sys.executable, "-c", _RUN], input=job, capture_output=True, check=False
        )
        sys.stdout.write(done.stdout.decode(errors="replace"))
        if b"Skipped: " in done.stderr:
            pytest.skip(done.stderr.decode(errors="replace").rpartition("Skipped: ")[2])
        if done.returncode != 0:
            told = done.stderr.decode(errors="replace")
            raise RuntimeError(f"the process of the test ended with {done.returncode}\n{told}")

    return isolated
