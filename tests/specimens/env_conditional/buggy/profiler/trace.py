"""Talks to the profiling daemon."""

import os

from profiler.libkineto import init_cupti

USE_DAEMON = bool(int(os.environ.get("KINETO_USE_DAEMON", "0")))
if USE_DAEMON:
    GPU_TRACING = init_cupti()  # touch: culprit


def register_job(name: str) -> str:
    return f"{name}:daemon" if USE_DAEMON else name
