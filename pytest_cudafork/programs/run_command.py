"""``python -m pytest_cudafork run``: a program in its own place, and afterwards its account.

What is imported at the top is imported before the program starts; what tells of it, afterwards.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pytest_cudafork.compat.unpatched import contextlib, gc, os, time
from pytest_cudafork.documents.writing import try_to_write
from pytest_cudafork.observe.base.ledger import LedgerError
from pytest_cudafork.observe.handed_on import WatchSettings, variables_for_program
from pytest_cudafork.programs import run_options
from pytest_cudafork.programs.foreground import Foreground, end_like
from pytest_cudafork.programs.own_ledger import new_ledger, seen_device
from pytest_cudafork.programs.run_options import RunOptions, UsageError
from pytest_cudafork.settings import environment

FOUND, USAGE, NOT_EXECUTABLE, NOT_THERE = 1, 2, 126, 127
"""Exit statuses of our own; all others are the program's. The last two are those of a shell."""
LEVEL, GUARDED_LEVEL = "poison", "fork"
"""What is an error: a touch in a poisoned child; with the guard also the fork itself."""
_MARK_BYTES = 16


def main(args: Sequence[str]) -> int:
    """Run a program and tell what it did.

    Args:
        args: What follows ``python -m pytest_cudafork run``.

    Returns:
        The program's exit status; where a signal killed it, that kills this process as well. 1: an
        error was found, with ``--fail``. 2: the arguments are wrong. 126, 127: the program cannot
        be executed, or is not there.

    """
    try:
        options = run_options.parse(args)
        if options.help:
            sys.stdout.write(run_options.HELP)
            return 0
        with contextlib.ExitStack() as undo:
            exitcode = _run(options, undo)
    except UsageError as error:
        _say(f"error: {error}\n{run_options.USAGE}{run_options.HINT}", end="")
        return USAGE
    return end_like(exitcode)


def _run(options: RunOptions, undo: contextlib.ExitStack) -> int:
    """Run it and tell; return the exit code to end with.

    Raises:
        UsageError: A file or device that was named cannot be had.

    """
    settings = _settings(options, undo)
    command = options.command
    is_there = options.program or command[0] in ("-", "-m") or os.path.exists(command[0])
    if not options.program:
        command = (*run_options.interpreter(), *command)
    if environment.is_set(environment.WATCH):  # of a program that has started this one
        from pytest_cudafork.check.watch import tell_program

        tell_program(f"what the program of `run` in process {os.getpid()} did: it tells of that")
    env = dict(os.environ)
    env.update(variables_for_program(settings, str(os.getpid()), env))
    env[environment.PHASE] = environment.PROGRAM
    in_the_driver: dict[str, str] = {}
    if options.program:  # which may be no Python
        from pytest_cudafork.observe.witnesses import variables_without_python

        in_the_driver = variables_without_python(settings.device, env)
        env.update(in_the_driver)
    if options.captures:
        env[environment.CAPTURES] = options.captures
    began = time.monotonic()
    try:
        program = Foreground(command, env, os.urandom(_MARK_BYTES))
    except FileNotFoundError as error:
        _say(f"{command[0]}: {error.strerror}{_meant(command[0])}")
        return NOT_THERE
    except (OSError, ValueError) as error:
        _say(f"{command[0]}: {error}{_meant(command[0])}")
        return NOT_EXECUTABLE
    exitcode = program.wait()
    gc.enable()  # see __main__.py
    seconds = time.monotonic() - began
    from pytest_cudafork.programs import run_report
    from pytest_cudafork.programs.deeds import First
    from pytest_cudafork.programs.first_process import is_python

    first = First.PYTHON if is_there else First.NOT_THERE
    if options.program and not is_python(command[0], env):
        first = First.SEEN if in_the_driver else First.UNSEEN
    ended = run_report.Ended(program.pid, tuple(command), exitcode, seconds, first)
    account = run_report.account_of(ended, settings, env, program.still_running())
    told = run_report.tell(account, options.report, as_json=options.json)
    if options.fail and exitcode == 0 and not (told and account.is_good):
        return FOUND
    return exitcode


def _meant(program: str) -> str:
    """Say how a file is run that lies here and was no program; "" for what is none."""
    with contextlib.suppress(ValueError):  # a null byte
        if not os.path.isfile(program):
            return ""
        if program.endswith(".py"):
            import shlex

            return f": a Python script is run without --: run {shlex.quote(program)}"
        if os.path.basename(program) == program:
            return f": the one in this folder is ./{program}"
    return ""


def _settings(options: RunOptions, undo: contextlib.ExitStack) -> WatchSettings:
    """Make the ledger, and try the report.

    Raises:
        UsageError: A file or device that was named cannot be had.

    """
    try:
        device = seen_device(options.device)
    except ValueError as error:
        raise UsageError(f"--device: {error}") from None
    if options.report:
        try:
            try_to_write(options.report)  # what cannot be written is better known now
        except OSError as error:
            raise UsageError(f"--report: {options.report}: {error.strerror}") from None
    try:
        ledger = new_ledger(undo, path=options.ledger)
    except LedgerError as error:
        raise UsageError(f"--ledger: {error}") from None
    except OSError as error:
        raise UsageError(
            f"the ledger cannot be written: {error}: name another file with --ledger, or another "
            "folder with TMPDIR"
        ) from None
    level = GUARDED_LEVEL if options.guard else LEVEL
    return WatchSettings(ledger, device, level, options.allow)


def _say(text: str, end: str = "\n") -> None:
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(f"pytest-cudafork run: {text}{end}")
