"""Talks to the profiling daemon."""

import functools
import os

from profiler.libkineto import init_cupti

USE_DAEMON = bool(int(os.environ.get("KINETO_USE_DAEMON", "0")))


@functools.cache
def gpu_tracing() -> bool:
    """Whether kernels can be traced; asked when the first trace starts."""
    return init_cupti()


def register_job(name: str) -> str:
    return f"{name}:daemon" if USE_DAEMON else name
