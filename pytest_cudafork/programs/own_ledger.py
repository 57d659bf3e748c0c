"""What the watch over one program begins with: a ledger of its own, and the driver that it sees.

``run_script``, the command ``run`` and ``watch()`` begin here. It is imported before the program is
started, so it imports little.
"""

from __future__ import annotations

from pytest_cudafork.compat.unpatched import contextlib, os
from pytest_cudafork.observe.base.ledger import Ledger
from pytest_cudafork.settings import devices, environment

_MAY_ENTER = 0o711
_MAY_WRITE = 0o666
_SECRET_BYTES = 8
_PREFIX = "pytest-cudafork-run-"
_TEMPORARY = ("/tmp", "/var/tmp", os.curdir)


def seen_device(text: str | None) -> str:
    """Return the device for a word as in ``--cuda-fork-device``; None: what is here.

    Raises:
        ValueError: There is no such device, or not here.

    """
    return devices.resolve(devices.parse_device(text or devices.DeviceKind.AUTO.value))


def new_ledger(
    undo: contextlib.ExitStack,
    folder: str | None = None,
    path: str = "",
    *,
    outlives: bool = False,
) -> str:
    """Create a ledger, and return its path; one among temporary files is removed by ``undo``.

    Where root makes a temporary one, a program that becomes another user can still write it; that
    user cannot look for its name.

    Args:
        undo: What is closed when the ledger was read.
        folder: The folder for a temporary one; None: that of temporary files.
        path: The file to be, which is then kept; "": a temporary one.
        outlives: Whether a temporary one is needed when this process has gone; else whoever finds
            that it was killed may remove it.

    Raises:
        LedgerError: The file is something else, or the ledger of a session that runs.
        OSError: It cannot be written.

    """
    if path:
        Ledger(path).create()
        return path
    made = _new_folder(folder)
    shared = os.geteuid() == 0
    secret = f"-{os.urandom(_SECRET_BYTES).hex()}" if shared else ""
    path = os.path.join(made, f"ledger{secret}.jsonl")
    undo.callback(remove_ledger, path)
    Ledger(path).create(temporary=not outlives)
    if shared:
        os.chmod(path, _MAY_WRITE)
        os.chmod(made, _MAY_ENTER)
    return path


def remove_ledger(path: str) -> None:
    """Remove a temporary ledger with its folder; what cannot be removed is left."""
    with contextlib.suppress(OSError):
        os.unlink(path)
    with contextlib.suppress(OSError):
        os.rmdir(os.path.dirname(path))


def _new_folder(parent: str | None) -> str:
    """Make a folder that only this user can look into; ``tempfile`` takes longer to import.

    Raises:
        OSError: None can be made.

    """
    named = [environment.value(name) for name in environment.TEMPORARY]
    parents = [parent] if parent is not None else [*filter(None, named), *_TEMPORARY]
    error = OSError("there is no folder for temporary files")
    for each in parents:
        path = os.path.join(os.path.abspath(each), f"{_PREFIX}{os.urandom(_SECRET_BYTES).hex()}")
        try:
            os.mkdir(path, 0o700)
        except OSError as found:
            error = found
        else:
            return path
    raise error
