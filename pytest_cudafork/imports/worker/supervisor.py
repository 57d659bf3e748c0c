"""Owns the process between an audit and a fresh interpreter: a module may kill its parent.

It does not know what the interpreter does. Run as a script, with nothing but the standard library:
``warden.py FD COMMAND...``; FD is the connection to the audit, on which ``{"status": ...}`` is said
when the command has ended. When the audit is gone, the command is ended.
"""

from __future__ import annotations

import os
import select
import signal
import sys

UNHEARD = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGTERM,
    signal.SIGVTALRM,
    signal.SIGPROF,
)


def main(control: int, command: list[str]) -> None:
    """Run a command, wait for its end, and tell how it ended."""
    for each in UNHEARD:
        signal.signal(each, signal.SIG_IGN)
    pid = os.posix_spawn(command[0], command, os.environ, setsigdef=UNHEARD)
    ended = os.pidfd_open(pid)
    poller = select.poll()
    poller.register(ended, select.POLLIN)
    poller.register(control, 0)  # that the other end is closed is told in any case
    if not any(fd == ended for fd, _ in poller.poll()):
        os.kill(pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.write(control, b'{"status": %d}\n' % status)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
