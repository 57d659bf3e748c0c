"""Temporary folders for ledgers, and what processes that were killed have left of theirs.

Whoever makes such a folder removes it at its end. A process that is killed cannot: then the next
one that makes a folder does, where it is certain that the maker of the ledger has gone.
"""

from __future__ import annotations

from pytest_cudafork.compat.unpatched import contextlib, os, shutil, stat, tempfile
from pytest_cudafork.observe.base.ledger import Ledger

_PREFIX = "pytest-cudafork-"
_LEDGER = "ledger.jsonl"
GPUS = "gpus"
"""What else may be in such a folder: locks of GPUs that this session alone sees."""


def make_ledger(kind: str = "", parent: str | None = None) -> Ledger:
    """Make a folder with an empty ledger; ``remove_ledger`` has to follow.

    Args:
        kind: What stands in the name of the folder, as "run-".
        parent: The folder in which it is made; None: that for temporary files.

    Raises:
        OSError: It cannot be made.

    """
    folder = tempfile.mkdtemp(prefix=f"{_PREFIX}{kind}", dir=parent)
    ledger = Ledger(os.path.join(folder, _LEDGER))
    try:
        ledger.create(temporary=True)
    except BaseException:
        remove_ledger(ledger)
        raise
    if parent is None:
        remove_abandoned(os.path.dirname(folder))
    return ledger


def remove_ledger(ledger: Ledger) -> None:
    """Remove a ledger that was made here, with its folder."""
    shutil.rmtree(os.path.dirname(ledger.path), ignore_errors=True)


def gpu_folder(path: str) -> str | None:
    """Return where locks may lie beside a ledger; None beside one that was not made here."""
    folder, name = os.path.split(path)
    mine = name == _LEDGER and os.path.basename(folder).startswith(_PREFIX)
    return os.path.join(folder, GPUS) if mine else None


def remove_abandoned(parent: str) -> None:
    """Remove the folders of this user with a ledger whose maker has gone without doing it."""
    with contextlib.suppress(OSError):
        for name in os.listdir(parent):
            folder = os.path.join(parent, name)
            if name.startswith(_PREFIX) and _is_abandoned(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: str) -> bool:
    try:
        found = os.lstat(folder)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            return False
        names = [name for name in os.listdir(folder) if name != GPUS]
    except OSError:
        return False
    if len(names) != 1 or not names[0].startswith("ledger") or not names[0].endswith(".jsonl"):
        return False
    return Ledger(os.path.join(folder, names[0])).is_abandoned
