"""The process between an audit and a fresh interpreter, because a module may kill its parent.

Run as a script, with nothing but the standard library: ``supervisor.py FD SIGNALS COMMAND...``. FD
is the end of a pipe, to which the exit status is written when the command has ended; SIGNALS are
the numbers of those that this process ignores, with commas between. When nobody holds the other end
of the pipe any more, the command is ended.
"""

from __future__ import annotations

import os
import select
import signal
import sys


def main(status_fd: int, signals: list[int], command: list[str]) -> None:
    """Run a command, wait for its end, and tell how it ended."""
    for each in signals:
        signal.signal(each, signal.SIG_IGN)
    os.set_inheritable(status_fd, False)  # a module may write to every descriptor
    pid = os.posix_spawn(command[0], command, os.environ, setsigdef=signals)
    ended = os.pidfd_open(pid)
    poller = select.poll()
    poller.register(ended, select.POLLIN)
    poller.register(status_fd, 0)  # that the other end is closed is told in any case
    if not any(fd == ended for fd, _ in poller.poll()):
        os.kill(pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.write(status_fd, b"%d\n" % status)


if __name__ == "__main__":
    main(int(sys.argv[1]), [int(word) for word in sys.argv[2].split(",")], sys.argv[3:])
