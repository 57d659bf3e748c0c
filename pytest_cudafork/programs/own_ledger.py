"""What the watch over one program begins with: a ledger of its own, and the driver that it sees.

``run_script``, the command ``run`` and ``watch()`` begin here. It is imported before the program is
started, so it imports little.
"""

from __future__ import annotations

from pytest_cudafork.compat.unpatched import contextlib, os
from pytest_cudafork.observe.base.ledger import Ledger
from pytest_cudafork.observe.base.ledger_folder import make_ledger, remove_ledger
from pytest_cudafork.observe.base.undo import only_here
from pytest_cudafork.settings import devices


def named_device(text: str | None) -> devices.Device:
    """Read a word as in ``--cuda-fork-device``; None: what is here.

    Raises:
        TypeError: It is no text.
        ValueError: There is no such device.

    """
    return devices.Device() if text is None or text == "" else devices.parse_device(text)


def seen_device(text: str | None) -> str:
    """Return the device for a word as in ``--cuda-fork-device``; None: what is here.

    Raises:
        TypeError: It is no text.
        ValueError: There is no such device, or not here.

    """
    return devices.resolve(named_device(text))


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
    ledger = make_ledger("run-", folder, shared=os.geteuid() == 0, outlives=outlives)
    undo.callback(only_here(lambda: remove_ledger(ledger.path)))
    return ledger.path
