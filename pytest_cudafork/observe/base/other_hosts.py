"""Records of other hosts, or of other jobs, in one ledger.

Processes of two hosts may have the same numbers, so those of all but the first are moved out of the
way, into bits that a process's number never has: above 32 bits the job of a joined ledger, above
those the host of a session that runs on several.
"""

from __future__ import annotations

from typing import Any

from pytest_cudafork.compat.unpatched import os
from pytest_cudafork.observe.base.records import Record

JOB, HOST = 32, 44
"""The lowest bit of the number of a job, and of a host."""
_BITS = {JOB: HOST - JOB, HOST: 18}
_NUMBERS = ("pid", "tid", "ppid", "parent")
_IDS = ("id", "fork")


def _part(number: int, kind: int) -> int:
    return (number >> kind) & ((1 << _BITS[kind]) - 1)


def moved_number(number: int, by: int, kind: int = HOST) -> int:
    """Return what the number of a process becomes: one of host ``by``, or of job ``by``."""
    return number + (by << kind)


def process_words(number: int) -> str:
    """Name a process by its number, and by its host if that is not the first."""
    host = _part(number, HOST)
    own = number & ((1 << JOB) - 1)
    return f"process {own} of host {host}" if host else f"process {number}"


def file_at_home(path: str, there: str, here: str) -> str:
    """Return the file of the same name below a folder of this host; others keep their names.

    Args:
        path: A file on another host; a folder may have slashes at its end, which it keeps.
        there: A folder on that host.
        here: The folder that has the same files on this host.

    """
    return here + path[len(there) :] if path.startswith(there + os.sep) else path


def moved(record: Record, by: int, kind: int = HOST) -> dict[str, Any]:
    """Return a record with numbers and ids that no other host, or job, has."""
    found = dict(record)
    for key in _NUMBERS:
        number = found.get(key)
        if isinstance(number, int) and number > 0 and not _part(number, kind):
            found[key] = moved_number(number, by, kind)
    owner = str(found.get("owner", ""))
    if owner.isdecimal():
        found["owner"] = str(moved_number(int(owner), by, kind))
    for key in _IDS:
        if found.get(key):
            found[key] = f"{by}:{found[key]}"
    if "ids" in found:
        found["ids"] = [f"{by}:{each}" for each in found["ids"]]
    return found


def moved_back(record: Record, by: int, kind: int = HOST) -> dict[str, Any]:
    """Return a record as it was before ``moved``."""
    found = dict(record)
    prefix = f"{by}:"
    for key in _NUMBERS:
        number = found.get(key)
        if isinstance(number, int) and number > 0 and _part(number, kind) == by:
            found[key] = moved_number(number, -by, kind)
    owner = str(found.get("owner", ""))
    if owner.isdecimal() and _part(int(owner), kind) == by:
        found["owner"] = str(moved_number(int(owner), -by, kind))
    for key in _IDS:
        if found.get(key):
            found[key] = str(found[key]).removeprefix(prefix)
    if "ids" in found:
        found["ids"] = [each.removeprefix(prefix) for each in found["ids"]]
    return found
