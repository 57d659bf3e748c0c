"""Writing a file that others wait for: all of it at once, or as it is into a pipe or a device."""

from __future__ import annotations

from pytest_cudafork.compat.unpatched import contextlib, io, os


def write_at_once(path: str, text: str) -> None:
    """Write a file at once, so that who waits for it never reads a part.

    Raises:
        OSError: It cannot be written.

    """
    path = os.path.realpath(path)  # a link stays one
    if os.path.lexists(path) and not os.path.isfile(path):  # a pipe or a device
        with io.open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return
    beside = f"{path}.{os.getpid()}"
    try:
        with io.open(beside, "x", encoding="utf-8") as file:
            file.write(text)
        os.replace(beside, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        # The folder may take no new file while this one may be written.
        with io.open(path, "w", encoding="utf-8") as file:
            file.write(text)
