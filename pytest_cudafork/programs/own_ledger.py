"""What the watch over one program begins with: a ledger of its own, and the driver that it sees.

``run_script``, the command ``run`` and ``watch()`` begin here. It is imported before the program is
started, so it imports little.
"""

from __future__ import annotations

from pytest_cudafork.compat.unpatched import contextlib, os
from pytest_cudafork.observe.base.ledger import Ledger
from pytest_cudafork.settings import devices

_MAY_ENTER = 0o711
_MAY_WRITE = 0o666
_SECRET_BYTES = 8


def seen_device(text: str | None) -> str:
    """Return the device for a word as in ``--cuda-fork-device``; None: what is here.

    Raises:
        ValueError: There is no such device, or not here.

    """
    return devices.resolve(devices.parse_device(text or devices.DeviceKind.AUTO.value))


def new_ledger(undo: contextlib.ExitStack, folder: str | None = None, path: str = "") -> str:
    """Create a ledger, and return its path; one among temporary files is removed by ``undo``.

    Where root makes a temporary one, a program that becomes another user can still write it; that
    user cannot look for its name.

    Args:
        undo: What is closed when the ledger was read.
        folder: The folder for a temporary one; None: that of temporary files.
        path: The file to be, which is then kept; "": a temporary one.

    Raises:
        LedgerError: The file is something else, or the ledger of a session that runs.
        OSError: It cannot be written.

    """
    if path:
        Ledger(path).create()
        return path
    import shutil
    import tempfile

    made = tempfile.mkdtemp(prefix="pytest-cudafork-run-", dir=folder)
    undo.callback(shutil.rmtree, made, ignore_errors=True)
    if os.geteuid() != 0:
        path = os.path.join(made, "ledger.jsonl")
        Ledger(path).create()
        return path
    path = os.path.join(made, f"ledger-{os.urandom(_SECRET_BYTES).hex()}.jsonl")
    Ledger(path).create()
    os.chmod(path, _MAY_WRITE)
    os.chmod(made, _MAY_ENTER)
    return path
