"""The command line without a test suite: ``python -m pytest_cudafork COMMAND``."""

from __future__ import annotations

import contextlib
import errno
import gc
import io
import os
import signal
import sys
from typing import NoReturn

_LAST_STREAM = 2

_USAGE = """\
usage: python -m pytest_cudafork COMMAND ...     (COMMAND --help shows its options)

  run [options] SCRIPT | -m MODULE | -- PROGRAM
                     Run a program, and name the lines that initialize CUDA and fork.
  explain [FILE]     Say which error of CUDA and fork a log holds, and what to run next.
  imports PKG        Name the lines that initialize CUDA when a package is imported.
  attach PID         Say whether CUDA is initialized in a process that runs, and by which line.
  doctor             Say what of this machine changes what CUDA and forks do.
  merge LEDGER...    Join the ledgers of several jobs.
  html JSON PAGE     Write the page of --cuda-fork-html from a session's JSON.
  fileworker --preload MODULES --result-fd N
                     Run test files in forks of a clean process, for a test runner.
"""


def main(args: list[str] | None = None) -> int:
    """Run one command and return its exit status.

    Where nobody reads the output to its end, as with ``| head``, it is that of SIGPIPE.

    Args:
        args: The arguments; None: those of the process.

    """
    args = sys.argv[1:] if args is None else args
    _have_streams()
    if args[:1] != ["run"]:
        _have_descriptors()
    try:
        status = _run(args)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        _write_nowhere()
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _write_nowhere()
        sys.stderr.write(f"pytest-cudafork: the output cannot be written: {error}\n")
        return 2
    return status


def _have_streams() -> None:
    """Let what is written to a stream that was closed by whoever started this go nowhere.

    No descriptor is opened for it: a program that ``run`` starts would have it as its own.
    """
    sys.stdout = io.StringIO() if sys.stdout is None else sys.stdout
    sys.stderr = io.StringIO() if sys.stderr is None else sys.stderr


def _have_descriptors() -> None:
    """Open those of the three streams that are closed.

    Else a socket would get such a number, and be lost where a child is given its streams.
    """
    fd = os.open(os.devnull, os.O_RDWR)
    while fd <= _LAST_STREAM:
        os.set_inheritable(fd, True)
        fd = os.open(os.devnull, os.O_RDWR)
    os.close(fd)


def _write_nowhere() -> None:
    """Let what is still to be written go nowhere: Python tries again when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _run(args: list[str]) -> int:
    name = args[0] if args else ""
    if name == "imports":
        from pytest_cudafork.imports.command_line import main as command
    elif name == "fileworker":
        from pytest_cudafork.file_worker.command_line import main as command
    elif name == "merge":
        from pytest_cudafork.report.merge_command import main as command
    elif name == "attach":
        from pytest_cudafork.attach.command_line import main as command
    elif name == "doctor":
        from pytest_cudafork.doctor.command_line import main as command
    elif name == "run":
        gc.disable()  # until the program has ended: what is imported stays, and it waits for this
        from pytest_cudafork.programs.run_command import main as command
    elif name == "html":
        from pytest_cudafork.page.command import main as command
    elif name == "explain":
        from pytest_cudafork.explain.command_line import main as command
    else:
        return _usage(args)
    return command(args[1:])


def _usage(args: list[str]) -> int:
    if args[:1] in (["-h"], ["--help"]):
        sys.stdout.write(_USAGE)
        return 0
    if args:
        sys.stderr.write(f"python -m pytest_cudafork: error: there is no command {args[0]!r}\n")
    sys.stderr.write(_USAGE)
    return 2


def _end(status: int) -> NoReturn:
    """End this process with a status, also where Python is to ask for more then (``-i``).

    That is meant for the program of ``run``, which has the options of this interpreter. Here Python
    would show the end as an error, ask for more, and end with another status.
    """
    if sys.flags.inspect:
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    _end(main())
