"""What ``run`` tells when its program has ended: from the ledger to a report."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pytest_cudafork.compat.unpatched import contextlib, os
from pytest_cudafork.documents.writing import json_text, write_at_once
from pytest_cudafork.observe.base.records import file_of_stderr
from pytest_cudafork.observe.handed_on import WatchSettings
from pytest_cudafork.observe.observer import Observer
from pytest_cudafork.process.descendants import process_state
from pytest_cudafork.programs.account import Account
from pytest_cudafork.programs.deeds import First, read_deeds
from pytest_cudafork.settings import Level


class Ended(NamedTuple):
    """A program that has ended: its process, command, exit code (None: not known) and time.

    ``first`` is what its first process was.
    """

    pid: int
    command: tuple[str, ...]
    exitcode: int | None
    seconds: float
    first: First = First.PYTHON


def account_of(
    ended: Ended, settings: WatchSettings, env: Mapping[str, str], running: Iterable[int]
) -> Account:
    """Read what a program that has ended did, and all that descends from it until now.

    Args:
        ended: The program.
        settings: Its watch.
        env: Its environment.
        running: What descends from it and runs on.

    """
    observer = Observer(settings, str(os.getpid()))
    others = tuple((pid, process_state.program_of(pid)) for pid in running)
    lost = observer.lost_records()
    level, records = Level(settings.level), observer.records()
    deeds = read_deeds(records, ended.pid, env, level, lost, first=ended.first)
    return Account(ended.command, ended.exitcode, ended.seconds, deeds, observer.simulated, others)


def tell(account: Account, report: str, *, as_json: bool) -> bool:
    """Write an account into a file, or to stderr where none is named; False if it is not there.

    What cannot be written into the file goes to stderr: nobody would know of it otherwise.
    """
    if report:
        text = account.text()
        data = json_text(account.as_plain(), indent=2) if as_json else text
        try:
            write_at_once(report, data)
        except OSError as error:
            _write_stderr(f"pytest-cudafork run: the report cannot be written: {error}\n{text}")
            return False
        return True
    _write_stderr(f"\n{account.text(follows=file_of_stderr())}")
    return True


def _write_stderr(text: str) -> None:
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)
            sys.stderr.flush()
