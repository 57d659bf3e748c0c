"""``python -m pytest_cudafork fileworker``: its arguments, its loop, its exit status."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import select
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import BinaryIO

from pytest_cudafork.errors import ChildError
from pytest_cudafork.file_worker import commands
from pytest_cudafork.file_worker.child.template import CUDA, IMPORT
from pytest_cudafork.file_worker.runner import SIGNAL_BASE, FileRunner, NoTemplateError
from pytest_cudafork.process.protocol.server_messages import CannotFork
from pytest_cudafork.settings import import_options
from pytest_cudafork.settings.option import parse_modules, typed

DONE, LOST, USAGE = 0, 1, 2
_RENEW_AFTER = 20
_LOOK_SECONDS = 0.1
_STREAMS = {
    0: "standard input, from which commands are read",
    1: "standard output, where files write",
    2: "standard error, where files write",
}
_NAME = "python -m pytest_cudafork fileworker"


def main(args: Sequence[str]) -> int:
    """Run the files that standard input names, until it ends or says stop.

    Args:
        args: What follows ``python -m pytest_cudafork fileworker``.

    Returns:
        0: all that was asked for was run, however it ended. 1: no process could be had for a file,
        or nobody takes the answers. 2: the arguments are wrong, the template cannot be forked, or
        something was asked for that is nothing to ask for. 143: it was ended by SIGTERM.

    """
    given = _parser().parse_args(args)
    if sys.stdin is None:
        _say(f"error: {_STREAMS[0]}, is closed")
        return USAGE
    os.set_inheritable(given.result_fd, False)
    runner = FileRunner(
        given.preload,
        arguments=given.file_args,
        renew_after=given.renew_after,
        timeout=given.timeout,
    )
    try:
        with _signals(runner), contextlib.closing(runner):
            why_not = runner.start()
            if why_not is not None:
                _say(refusal(why_not))
                return USAGE
            _end_when_nobody_listens(runner, given.result_fd)
            return _serve(runner, sys.stdin.buffer, given.result_fd)
    except NoTemplateError as error:
        _say(refusal(error.why_not, renewed=True))
        return USAGE
    except (ChildError, OSError) as error:
        _say(f"it ends, for {error}")
        return LOST


def _serve(runner: FileRunner, source: BinaryIO, result_fd: int) -> int:
    """Answer each line; return the exit status."""
    status = DONE
    for line in iter(source.readline, b""):
        try:
            command = commands.read(line)
        except ValueError as error:
            _say(str(error))
            _answer(result_fd, commands.Answer("", USAGE, 0.0, str(error)))
            status = USAGE
            continue
        if isinstance(command, commands.Stop):
            break
        answer = runner.run(command.filename, command.timeout)
        if answer.why:
            _say(f"{answer.filename}: {answer.why}")
        _answer(result_fd, answer)
    return status


def _answer(result_fd: int, answer: commands.Answer) -> None:
    line = answer.line()
    while line:
        line = line[os.write(result_fd, line) :]


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # nobody reads it: the answers have it, too
        sys.stderr.write(f"pytest-cudafork fileworker: {text}\n")
        sys.stderr.flush()


def refusal(why_not: CannotFork, *, renewed: bool = False) -> str:
    """Say why the template cannot be forked, and what to do about it.

    Args:
        why_not: Why.
        renewed: Whether files were run, in forks of a template before this one.

    """
    name = why_not.path
    anew = " anew (--renew-after)" if renewed else ""
    if why_not.kind == "start":
        when = f"when it was to be started{anew}, " if renewed else ""
        return f"{when}{why_not.text}; it wrote:\n{why_not.output or '(nothing)'}"
    what = f"after `import {name}`" if name else "before any module was imported"
    if why_not.kind == IMPORT:
        return f"--preload: {name} cannot be imported{anew}:\n{why_not.text}"
    advice = (
        f"`python -m pytest_cudafork imports {name.partition('.')[0]} --preload` names the line "
        "and the modules that can be preloaded; leave this one out, or change the line"
        if name
        else "something that every interpreter here runs at its start does it (sitecustomize, or "
        "a .pth file of an installed package)"
    )
    harm = (
        "no file that is forked from there could use CUDA"
        if why_not.kind == CUDA
        else "a file that is forked from there lacks them, and may wait for them for ever"
    )
    run = (
        f"no more files are run: when the modules were imported{anew},"
        if renewed
        else "no file was run:"
    )
    return f"{run} {what}, {why_not.text}. From then on {harm}. What to do: {advice}."


# -- what ends it ----------------------------------------------------------------------------------


@contextlib.contextmanager
def _signals(runner: FileRunner) -> Iterator[None]:
    """Pass Ctrl-C on to the file that runs, and let SIGTERM end all."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        runner.interrupt()

    def terminate(number: int, frame: FrameType | None) -> None:
        raise SystemExit(SIGNAL_BASE + number)

    before = {
        number: signal.signal(number, handler)
        for number, handler in ((signal.SIGINT, interrupt), (signal.SIGTERM, terminate))
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_when_nobody_listens(runner: FileRunner, result_fd: int) -> None:
    """End this process, and so the file that runs, when the reader of the answers is gone.

    Standard input does not tell: it may end while there still is something to do. While no file
    runs nothing is lost: the end of standard input follows.

    Raises:
        ChildError: There is no thread left for it.

    """

    def watch() -> None:
        poller = select.poll()
        poller.register(result_fd, 0)  # that the other end is closed is told in any case
        poller.poll()
        while not runner.is_running:
            time.sleep(_LOOK_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    try:
        threading.Thread(target=watch, name="reader of the answers", daemon=True).start()
    except RuntimeError as error:
        raise ChildError(f"{error}, which would see that nobody takes the answers") from error


# -- arguments -------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=_NAME,
        description="Run test files as programs, each in a fork of a process that has imported "
        'modules. Standard input names a file a line, {"filename": "test_x.py"}; {"command": '
        '"stop"} ends it. Each is answered with a line {"filename": ..., "returncode": ..., '
        '"elapsed": ...}; what kills a file by a signal gives 128 and its number, what takes too '
        "long 124. Nothing is run if CUDA is initialized once the modules are imported.",
    )
    add = parser.add_argument
    add("--preload", metavar="MODULES", type=typed(parse_modules), default=(),
        help="What every file imports anyway, separated by commas.")  # fmt: skip
    add("--result-fd", metavar="N", type=typed(_parse_descriptor), required=True,
        help="The descriptor to which answers are written: one above 2.")  # fmt: skip
    add("--renew-after", metavar="FILES", type=typed(_parse_count), default=_RENEW_AFTER,
        help="Import the modules anew after so many files (default: %(default)s; 0: "
        "never).")  # fmt: skip
    add("--timeout", metavar="SECONDS", type=typed(import_options.parse_seconds),
        help="How long a file may take (default: no limit).")  # fmt: skip
    add("--file-args", metavar="ARGS", type=typed(_parse_arguments), default=["-f"],
        help="The command line of each file, as a shell splits it (default: -f, with which "
        "unittest stops at the first failure); --file-args= for none.")  # fmt: skip
    return parser


def _parse_descriptor(text: str) -> int:
    """Read a descriptor of this process that can be written to.

    Raises:
        ValueError: It is none.

    """
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{text!r} is not a descriptor: give its number")
    if int(text) in _STREAMS:
        raise ValueError(
            f"descriptor {int(text)} is {_STREAMS[int(text)]}: answers need a descriptor of their "
            "own, as a pipe is that whoever starts this process passes on (subprocess: "
            "pass_fds=(N,); in a shell: --result-fd 5 5>answers)"
        )
    try:
        mode = fcntl.fcntl(int(text), fcntl.F_GETFL) & os.O_ACCMODE
    except (OSError, OverflowError):
        raise ValueError(
            f"descriptor {text} is not open here: whoever starts this process has to pass it on "
            f"(subprocess: pass_fds=({text},))"
        ) from None
    if mode == os.O_RDONLY:
        raise ValueError(f"descriptor {text} can only be read: pass on the end that is written to")
    return int(text)


def _parse_count(text: str) -> int:
    """Read a number of files.

    Raises:
        ValueError: It is none.

    """
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{text!r} is not a number of files: use 0 for never, or a number above 0")
    return int(text)


def _parse_arguments(text: str) -> list[str]:
    """Read a command line.

    Raises:
        ValueError: A quotation mark is missing.

    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is no command line: {error}") from None
