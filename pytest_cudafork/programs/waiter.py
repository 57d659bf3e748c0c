"""The process that waits for the end of a program that others started, and writes the report.

It is started by ``at_start.py``. The program's exit status is for whoever started that: it is not
known here.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_cudafork.compat.unpatched import os, select, signal, time
from pytest_cudafork.observe.base.ledger_folder import remove_ledger
from pytest_cudafork.observe.handed_on import WatchSettings
from pytest_cudafork.process.descendants import leftovers
from pytest_cudafork.programs import run_report

_DEADLY = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
_LOOK_SECONDS = 0.5
_WORDS = 6
_SECRET_BYTES = 8
_PRIVATE = 0o077
"""The umask for a report among everybody's temporary files."""


def main(words: Sequence[str]) -> None:
    """Wait for a program, write its report, and once more when its last descendant has ended.

    Nobody hears this process. So a report that cannot be written where it is wanted, as on a full
    disk, is written into the folder for temporary files.

    Args:
        words: The report, the settings of the watch, the mark of the program's descendants, its
            process, a descriptor that becomes readable at its end, the monotonic clock when it
            began, and its command.

    """
    report, text, mark, pid, pidfd, began = words[:_WORDS]
    for number in _DEADLY:  # what ends the program must not end this
        signal.signal(number, signal.SIG_IGN)
    leftovers.forget_mark()
    settings, cookie = WatchSettings.from_text(text), bytes.fromhex(mark)
    poller = select.poll()
    poller.register(int(pidfd), select.POLLIN)
    poller.poll()
    seconds = time.monotonic() - float(began)
    told = False
    try:
        # Once it is told, a ledger that somebody has removed must not make a worse report of it.
        while not told or os.path.isfile(settings.ledger):
            running = leftovers.busy_processes(cookie)
            ended = run_report.Ended(int(pid), tuple(words[_WORDS:]), None, seconds)
            account = run_report.account_of(ended, settings, dict(os.environ), running)
            told = run_report.tell(account, report, as_json=report.endswith(".json"))
            if not running:
                break
            while leftovers.busy_processes(cookie):  # a server that has become a daemon
                time.sleep(_LOOK_SECONDS)
        if not told:
            os.umask(_PRIVATE)
            kept = _temporary_name(settings.ledger, pid, report)
            run_report.tell(account, kept, as_json=report.endswith(".json"))
    finally:
        remove_ledger(settings.ledger)


def _temporary_name(ledger: str, pid: str, report: str) -> str:
    """Return a name beside the ledger's folder that tells the program and that nobody can guess."""
    folder = os.path.dirname(os.path.dirname(ledger))
    name = f"pytest-cudafork-run-{pid}-{os.urandom(_SECRET_BYTES).hex()}"
    return os.path.join(folder, name + os.path.splitext(report)[1])
