"""When garbage is not collected.

Within a capture, what the collector destroys may wait for the GPU, which would break the capture
now and then, at any line; and which memory is free would depend on when it runs. Within a call that
holds a lock of the interpreter, a finalizer may wait for that lock.
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cudafork.compat.unpatched import contextlib, gc


@contextlib.contextmanager
def no_collections() -> Iterator[None]:
    """Collect no garbage meanwhile, and from then on as before."""
    collects = gc.isenabled()
    try:
        gc.disable()  # here: the handler of a signal may raise right after it
        yield
    finally:
        if collects:
            gc.enable()
