"""The arguments of ``python -m pytest_cudafork run``, read by hand.

Only what stands before the program is ours, as for the interpreter itself; and argparse alone would
take longer to import than all else that is done before the program starts.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

from pytest_cudafork.compat.unpatched import os
from pytest_cudafork.settings.arguments import check_new_file

USAGE = (
    "usage: python -m pytest_cudafork run [options] SCRIPT [ARGUMENT ...]\n"
    "       python -m pytest_cudafork run [options] -m MODULE [ARGUMENT ...]\n"
    "       python -m pytest_cudafork run [options] -- PROGRAM [ARGUMENT ...]\n"
)
HELP = (
    USAGE
    + """
Run a program as it would run, and tell what it and all that descends from it did with CUDA: who
initialized it, who forked, which child was poisoned. The exit status is the program's own.

  --report FILE     Write what is to be told to FILE, and nothing to stderr.
  --json            Write it as JSON; needs --report.
  --fail            Exit with 1 where the program would have with 0, if something is an error, or if
                    too little was watched to say that nothing is.
  --guard           Refuse a fork while CUDA is initialized, where it happens, by a CudaForkError.
  --captures[=all]  Look at every CUDA graph that is captured and replayed, as --cuda-fork-captures.
  --allow MODULES   With --guard: modules whose forks are not refused, separated by commas.
  --device DEVICE   The driver to see: auto (default), real, phantom, phantom:sm_90x2, none.
  --ledger FILE     Keep the record of all touches and forks here.
  -h, --help        Show this.
"""
)


HINT = "--help shows the options\n"


class UsageError(ValueError):
    """The arguments cannot be used; Recoverable by others. The text says what is wrong."""


class RunOptions(NamedTuple):
    """What the arguments ask for.

    Attributes:
        command: The program with its arguments.
        program: The command is one as for a shell; else it is what follows ``python``.
        report: The file that is told, as an absolute path; "": stderr is.
        json: Whether that is JSON.
        fail: Whether a finding is an exit status.
        guard: Whether a fork while CUDA is initialized is refused.
        captures: How captured graphs are looked at, "check" or "all"; "": they are not.
        allow: Modules whose forks are not.
        device: As in ``--cuda-fork-device``.
        ledger: The file to keep the ledger in, as an absolute path; "": it is not kept.
        help: Whether the help is asked for.

    """

    command: tuple[str, ...] = ()
    program: bool = False
    report: str = ""
    json: bool = False
    fail: bool = False
    guard: bool = False
    captures: str = ""
    allow: tuple[str, ...] = ()
    device: str | None = None
    ledger: str = ""
    help: bool = False


_FLAGS = ("json", "fail", "guard")
_CAPTURES = ("check", "all")
_VALUES = ("report", "allow", "device", "ledger")


def parse(args: Sequence[str]) -> RunOptions:
    """Read the arguments up to the program.

    Raises:
        UsageError: There is no program, or an option that does not exist or cannot be used.

    """
    found: dict[str, object] = {}
    rest = list(args)
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "-m", "--"):
        word = rest.pop(0)
        if word in ("-h", "--help"):
            return RunOptions(help=True)
        name, equals, value = word.removeprefix("--").partition("=")
        if word.startswith("--") and name in _FLAGS and not equals:
            found[name] = True
        elif word.startswith("--") and name == "captures":
            found[name] = _read(name, value if equals else "check")
        elif word.startswith("--") and name in _VALUES:
            if not equals:
                value = _next_word(name, rest)
            found[name] = _read(name, value)
        else:
            raise UsageError(_unknown(word))
    command, program = _program(rest)
    options = RunOptions(command=command, program=program)._replace(**found)  # type: ignore[arg-type]
    if options.json and not options.report:
        raise UsageError("--json: name the file that it goes to with --report FILE")
    both = options.report and options.ledger
    if both and os.path.realpath(options.report) == os.path.realpath(options.ledger):
        raise UsageError(f"--report: {options.report!r} is the file of --ledger, too: name another")
    if options.allow and not options.guard:
        raise UsageError("--allow: no fork is refused, so none has to be allowed: add --guard")
    return options


def _next_word(name: str, rest: list[str]) -> str:
    """Take the value of an option.

    Raises:
        UsageError: There is none, or it was forgotten and what follows is another option.

    """
    if not rest:
        raise UsageError(f"--{name} needs a value")
    if rest[0].startswith("-"):
        raise UsageError(
            f"--{name} needs a value, and {rest[0]} looks like an option: if it is the value, "
            f"write --{name}={rest[0]}"
        )
    return rest.pop(0)


def _unknown(word: str) -> str:
    if word.startswith("-c"):
        return f"{word}: name a script, or run the interpreter itself: -- python {word} ..."
    return (
        f"there is no option {word!r}: options of the program follow it, those of its interpreter "
        "come as in -- python -X dev script.py"
    )


def _read(name: str, value: str) -> object:
    """Read a value.

    Raises:
        UsageError: It is none.

    """
    if not value:
        raise UsageError(f"--{name}: the value is empty")
    if name == "report":
        try:
            check_new_file(value, "--report")
        except ValueError as error:
            raise UsageError(f"--report: {error}") from None
    if name in ("report", "ledger"):
        try:
            return os.path.abspath(value)
        except FileNotFoundError:
            raise UsageError(
                f"--{name}: {value!r} is in the working directory, which has been removed: name "
                "the file by its whole path"
            ) from None
    if name == "captures" and value not in _CAPTURES:
        raise UsageError(f"--captures={value}: say one of {', '.join(_CAPTURES)}")
    if name == "allow":
        modules = tuple(each.strip() for each in value.split(",") if each.strip())
        for module in modules:
            if not all(part.isidentifier() for part in module.split(".")):
                raise UsageError(f"--allow: {module!r} is not a module name")
        return modules
    return value


def _program(words: list[str]) -> tuple[tuple[str, ...], bool]:
    """Return the program with its arguments, and whether it is one as for a shell.

    Raises:
        UsageError: There is none.

    """
    if words[:1] == ["--"]:
        if not words[1:]:
            raise UsageError("there is no program after --")
        return tuple(words[1:]), True
    if words[:1] == ["-m"] and not words[1:]:
        raise UsageError("there is no module after -m")
    if not words:
        raise UsageError("there is no program to run")
    return tuple(words), False


def interpreter() -> list[str]:
    """Return the command of this interpreter with the options it was started with, as it was."""
    before = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1]
    if before[-2:] == ["-m", "pytest_cudafork"]:
        return [sys.executable, *before[:-2]]
    from pytest_cudafork.compat import standard_library

    return [sys.executable, *standard_library.interpreter_flags()]
