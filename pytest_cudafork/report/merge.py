"""The ledgers of jobs that ran a suite in parts, joined: one ledger, and one result.

Processes of two machines may have the same numbers, so those of the second job on are moved out of
the way. A job that did not come to its end, or that lost records, is an error of the whole.

What is joined can be told apart again: before the records of each job stands one of kind ``job``.
So a joined ledger is the same jobs when it is read, and comes to the same result when it is
joined again, with others or alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from pytest_cudafork.baseline.entries import Accepted
from pytest_cudafork.check.baseline_result import BaselineResult, Seen
from pytest_cudafork.observe.base.ledger import Ledger
from pytest_cudafork.observe.base.other_hosts import JOB, moved, moved_back
from pytest_cudafork.observe.base.records import Record
from pytest_cudafork.settings.arguments import check_old_file

_JOB = "job"
"""The kind of the record before those of each job, and the key that names the job in all others."""
_BROKEN_END = "its last record is broken"


class MergeError(ValueError):
    """A file is not what it is said to be; Recoverable by naming another."""


class Job(NamedTuple):
    """What one ledger holds, or a part of one that is joined.

    Attributes:
        path: The file in which the job kept its records.
        records: Its records.
        damage: What is missing from it, in words.
        result: What its session found; None if that did not come to its end.
        stopped: Why the session was stopped early, or "".
        status: Its exit status; -1: not known.

    """

    path: str
    records: list[Record]
    damage: tuple[str, ...]
    result: BaselineResult | None
    stopped: str
    status: int


class Merged(NamedTuple):
    """What all jobs found together, and in which each was seen."""

    result: BaselineResult
    jobs_of: dict[Accepted, list[str]]
    gone: tuple[Accepted, ...]
    errors: tuple[str, ...]


def read_jobs(paths: Sequence[str]) -> list[Job]:
    """Read the ledgers.

    Raises:
        MergeError: One is not there, is no ledger, or is named twice, perhaps within a joined one.

    """
    jobs: list[Job] = []
    seen: dict[str, str] = {}
    for path in paths:
        real = os.path.realpath(path)
        if real in seen:
            raise MergeError(f"{path} and {seen[real]} are the same file: name each ledger once")
        seen[real] = path
        for job in _read(path):
            same = next((one for one in jobs if one.records and one.records == job.records), None)
            if same is not None:
                raise MergeError(
                    f"{path}: holds the job of {same.path}, which is named already, perhaps within "
                    "a joined ledger: name each job once"
                )
            jobs.append(job)
    return jobs


def _read(path: str) -> list[Job]:
    try:
        check_old_file(path, once=False)
        with open(path, "rb") as file:
            beginning = file.read(1000)
    except OSError as error:
        raise MergeError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise MergeError(str(error)) from None
    if not beginning.startswith(b'\n{"lost": '):
        raise MergeError(
            f"{path}: is no ledger: have each job keep its own with --cuda-fork-ledger=FILE"
        )
    reader = Ledger(path).reader()
    try:
        damage = tuple(reader.damage())  # first: it waits for a record that is being written
        records = reader.new()
    finally:
        reader.close()
    if reader.beginnings > 1:  # of several ends the last one alone would count
        raise MergeError(
            f"{path}: holds {reader.beginnings} ledgers, one behind the other: name each file by "
            "itself, and have them joined with --output=FILE"
        )
    parts = list(_parts(records))
    if not parts:
        return [_job(path, records, damage)]
    first = parts[0]
    number = first.record.get("of")
    if first.before or len(parts) != number:
        damage += (f"it is said to hold {number} jobs, and {len(parts)} are there whole",)
    # Nobody knows whose records the joined file lacks, if any: they are an error of the whole.
    return [
        _job(part.path, part.records, (*part.damage, *(damage if part is first else ())))
        for part in parts
    ]


class _Part:
    """The records of one job in a joined ledger.

    Attributes:
        record: The one of kind ``job``.
        path: The file from which the job came.
        damage: What was missing from it, in words.
        records: Its records, as they were in that file.
        before: Whether there are records before the first job, whose own line is lost.

    """

    def __init__(self, record: Record, *, before: bool) -> None:
        self.record = record
        self.before = before
        self.path = str(record.get("path"))
        damage = record.get("damage")
        self.damage = tuple(map(str, damage)) if isinstance(damage, list) else ()
        self.records: list[Record] = []


def _parts(records: Iterable[Record]) -> Iterator[_Part]:
    """Yield the jobs of a joined ledger; none of the ledger of one session."""
    part: _Part | None = None
    before = False
    for record in records:
        if record["k"] == _JOB:
            if part is not None:
                yield part
            part = _Part(record, before=before)
        elif part is None:
            before = True
        else:
            part.records.append(_moved_back(record, part.record.get("number")))
    if part is not None:
        yield part


def _job(path: str, records: list[Record], damage: tuple[str, ...]) -> Job:
    end = next((record for record in reversed(records) if record["k"] == "end"), None)
    if end is None:
        return Job(path, records, damage, None, "", -1)
    try:
        result = BaselineResult.from_plain(end.get("result"))
        return Job(path, records, damage, result, str(end.get("stopped")), int(end["status"]))
    except (ValueError, KeyError, TypeError, OverflowError):  # JSON's 1e999 is infinite
        if _BROKEN_END not in damage:  # a joined ledger knows already
            damage += (_BROKEN_END,)
        return Job(path, records, damage, None, "", -1)


def merge(jobs: Iterable[Job], accepted: Iterable[Accepted] = ()) -> Merged:
    """Join what jobs found.

    Args:
        jobs: All of them.
        accepted: The entries of the baseline as it is now, where one is named.

    """
    known = set(accepted)
    seen: dict[Accepted, Seen] = {}
    new: set[Accepted] = set()
    jobs_of: dict[Accepted, list[str]] = {}
    missing: dict[Accepted, None] = {}
    quiet: dict[Accepted, None] = {}
    cleared: set[Accepted] = set()
    initialized: dict[Accepted, None] = {}
    errors: list[str] = []
    unknown = 0
    for job in jobs:
        errors.extend(_errors_of(job))
        if job.result is None:
            continue
        for each in (*job.result.accepted, *job.result.new):
            jobs_of.setdefault(each.what, []).append(job.path)
            seen[each.what] = _joined(seen.get(each.what), each)
        new.update(each.what for each in job.result.new)
        unknown += job.result.unknown
        missing.update(dict.fromkeys(job.result.missing))
        quiet.update(dict.fromkeys(job.result.quiet))
        cleared.update(set(job.result.quiet) & set(job.result.initialized))
        initialized.update(dict.fromkeys(job.result.initialized))
    new -= known
    # A line that initialized CUDA in another job is followed by forks where tests are dealt out in
    # another way, unless the test was passed once after that line, too.
    quiet = {each: None for each in quiet if each not in initialized or each in cleared}
    gone = [each for each in (*missing, *quiet) if each not in seen]
    result = BaselineResult(
        tuple(each for each in seen.values() if each.what not in new),
        tuple(each for each in seen.values() if each.what in new),
        unknown,
        tuple(each for each in missing if each not in seen),
        tuple(each for each in quiet if each not in seen),
        tuple(each for each in initialized if each not in seen),
    )
    # What one job lost, or never came to, may be what is said to be gone.
    return Merged(result, jobs_of, () if errors else tuple(dict.fromkeys(gone)), tuple(errors))


def _joined(one: Seen | None, other: Seen) -> Seen:
    if one is None:
        return other
    return Seen(one.what, list(dict.fromkeys(one.places + other.places)), one.times + other.times)


def _errors_of(job: Job) -> list[str]:
    errors = [f"{job.path}: {words}" for words in job.damage]
    if job.result is None and not job.damage:
        errors.append(f"{job.path}: its session did not come to its end")
    if job.stopped:
        errors.append(f"{job.path}: its session was stopped: {job.stopped}")
    return errors


def write_joined(path: str, jobs: Sequence[Job]) -> None:
    """Write one ledger with the records of all jobs, one job after the other.

    It can be joined again: ``read_jobs`` of it returns these jobs.

    Raises:
        LedgerError: Something else is in the place of the file.
        OSError: It cannot be written.

    """
    ledger = Ledger(path)
    ledger.create()
    for number, job in enumerate(jobs):
        ledger.append(_JOB, path=job.path, number=number, of=len(jobs), damage=list(job.damage))
        with open(path, "ab") as file:
            for record in job.records:
                own = moved(record, number, JOB) if number else record
                file.write(b"\n" + json.dumps({**own, _JOB: job.path}).encode("ascii"))


def _moved_back(record: Record, number: object) -> dict[str, Any]:
    """Return a record of a joined ledger as it was in that of its job."""
    own = dict(record)
    own.pop(_JOB, None)
    return moved_back(own, number, JOB) if isinstance(number, int) and number > 0 else own
