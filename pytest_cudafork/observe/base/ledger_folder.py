"""Temporary folders for ledgers, and what processes that were killed have left of theirs.

Whoever makes such a folder removes it at its end. A process that is killed cannot: then the next
one that makes a folder does, where it is certain that the maker of the ledger has gone.
"""

from __future__ import annotations

import sys

from pytest_cudafork.compat.unpatched import contextlib, os, stat
from pytest_cudafork.observe.base.ledger import Ledger
from pytest_cudafork.settings import environment

_PREFIX = "pytest-cudafork-"
_LEDGER = "ledger.jsonl"
GPUS = "gpus"
"""What else may be in such a folder: locks of GPUs that this session alone sees."""
_MAY_ENTER = 0o711
_MAY_WRITE = 0o666
_SECRET_BYTES = 8
_TEMPORARY = ("/tmp", "/var/tmp", os.curdir)


def make_ledger(
    kind: str = "", parent: str | None = None, *, shared: bool = False, outlives: bool = False
) -> Ledger:
    """Make a folder with an empty ledger; ``remove_ledger`` has to follow.

    Args:
        kind: What stands in the name of the folder, as "run-".
        parent: The folder in which it is made; None: that for temporary files.
        shared: Whether other users can write it, who are told its name; nobody can look for that.
        outlives: Whether it is needed when this process has gone; else whoever finds that it was
            killed removes it.

    Raises:
        OSError: It cannot be made.

    """
    name = f"{_PREFIX}{kind}{os.urandom(_SECRET_BYTES).hex()}"
    problem = OSError("there is no folder for temporary files")
    for each in _temporary_folders() if parent is None else [parent]:
        folder = os.path.join(os.path.abspath(each), name)
        try:
            ledger = _make_within(folder, shared=shared, outlives=outlives)
        except OSError as error:  # full, perhaps, where another is not
            problem = error
            continue
        if parent is None:
            remove_abandoned(os.path.dirname(folder))
        return ledger
    raise problem


def _make_within(folder: str, *, shared: bool, outlives: bool) -> Ledger:
    """Make a folder that only this user can look into, with an empty ledger.

    Raises:
        OSError: It cannot be made; there is no folder then.

    """
    os.mkdir(folder, 0o700)
    secret = f"-{os.urandom(_SECRET_BYTES).hex()}" if shared else ""
    base, ending = os.path.splitext(_LEDGER)
    ledger = Ledger(os.path.join(folder, f"{base}{secret}{ending}"))
    try:
        ledger.create(temporary=not outlives)
        if shared:
            os.chmod(ledger.path, _MAY_WRITE)
            os.chmod(folder, _MAY_ENTER)
    except BaseException:
        remove_ledger(ledger.path)
        raise
    return ledger


def _temporary_folders() -> list[str]:
    """Where temporary files may be, the best place first."""
    if "tempfile" in sys.modules:  # what it was told counts
        from pytest_cudafork.compat.unpatched import tempfile

        return [tempfile.gettempdir()]
    # Importing it would take a program that is about to begin longer than all the rest.
    named = [environment.value(name) for name in environment.TEMPORARY]
    return [*filter(None, named), *_TEMPORARY]


def remove_ledger(path: str) -> None:
    """Remove a ledger that was made here, with its folder; what cannot be removed is left."""
    _remove(os.path.dirname(path))


def _remove(folder: str) -> None:
    from pytest_cudafork.compat.unpatched import shutil  # not before a program begins

    shutil.rmtree(folder, ignore_errors=True)


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
                _remove(folder)


def _is_abandoned(folder: str) -> bool:
    try:
        found = os.lstat(folder)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            return False
        names = [name for name in os.listdir(folder) if name != GPUS]
    except OSError:
        return False
    base, ending = os.path.splitext(_LEDGER)
    if len(names) != 1 or not (names[0].startswith(base) and names[0].endswith(ending)):
        return False
    return Ledger(os.path.join(folder, names[0])).is_abandoned
