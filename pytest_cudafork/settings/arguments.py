"""Checks of what functions and commands are given, with the same words everywhere."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping

_ELF = b"\x7fELF"
"""With which programs in machine code begin; scripts begin with ``#!``."""


def check_time_limit(timeout: object) -> None:
    """Check a time limit in seconds; None is none, and so is infinity.

    Raises:
        TypeError: It is no number.
        ValueError: It is not above 0.

    """
    if timeout is None:
        return
    if not _number(timeout, "a time limit is a number of seconds, or None for none") > 0:
        raise ValueError(f"timeout={timeout!r}: a time limit is above 0 seconds, or None for none")


def check_wait(timeout: object) -> None:
    """Check how many seconds are waited at most; 0 is to look once.

    Raises:
        TypeError: It is no number.
        ValueError: It is below 0.

    """
    if not _number(timeout, "a time is a number of seconds") >= 0:
        raise ValueError(f"timeout={timeout!r}: a time is 0 or more seconds")


def _number(timeout: object, rule: str) -> float:
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"timeout={timeout!r}: {rule}")
    return timeout


def check_variables(what: str, variables: object) -> None:
    """Check variables by name; a value that is None takes one away.

    Args:
        what: What the argument is called.
        variables: What was given.

    Raises:
        TypeError: It is no mapping, or holds something that is no text.
        ValueError: No environment can hold one of them.

    """
    if not isinstance(variables, Mapping):
        raise TypeError(
            f"{what}={variables!r}: variables are given as a dict of names and texts; None in "
            "place of a text takes one away"
        )
    for name, text in variables.items():
        check_variable(name, "" if text is None else text)


def check_variable(name: object, text: object) -> None:
    """Check that there can be a variable of this name with this value.

    Raises:
        TypeError: One of them is no text.
        ValueError: No environment can hold it.

    """
    if not isinstance(name, str):
        raise TypeError(f"the name of a variable is a text, not {name!r}")
    if not isinstance(text, str):
        raise TypeError(
            f"the variable {name} is to be {text!r}: a variable holds a text; None takes it away"
        )
    if not name or "=" in name or not is_c_string(name + text):
        raise ValueError(f"{name!r}={text!r}: no environment can hold that")


def is_c_string(text: str) -> bool:
    """Whether a system can take a text: NUL would end it, no bytes stand for half a surrogate."""
    if "\0" in text:
        return False
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def input_bytes(stdin: object) -> bytes:
    """Return what a program reads from its standard input; a text is written as UTF-8.

    Raises:
        TypeError: It is neither text nor bytes.
        ValueError: It is a text that has no bytes.

    """
    if isinstance(stdin, bytes | bytearray | memoryview):
        return bytes(stdin)
    if not isinstance(stdin, str):
        raise TypeError(
            f"stdin={stdin!r}: what a script reads is a text or bytes; of a file, read it first"
        )
    try:
        return stdin.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"stdin: the text cannot be written as UTF-8: {error}") from None


def check_new_file(path: str, flag: str = "") -> None:
    """Check that a file can be written, before the work that it is to tell of, which may take long.

    Whoever forgets its name after an option names what follows, the program to run or the tests.
    That is not written over.

    Args:
        path: Its name.
        flag: The option that names it, for an example.

    Raises:
        ValueError: It cannot be written, or is a program.

    """
    if "\0" in path:
        raise ValueError(f"{path!r} cannot be the name of a file")
    folder = os.path.dirname(path)
    if folder and not os.path.isdir(folder):
        raise ValueError(f"there is no folder {folder!r}")
    if os.path.isdir(path):
        raise ValueError(f"{path!r} is a folder, not a file")
    kind = "a Python file" if path.endswith(".py") else "a program" if _is_program(path) else ""
    if kind:
        example = f" first, as in {flag}=FILE {path}" if flag else ""
        raise ValueError(
            f"{path!r} is {kind}, and would be written over: name the file to write{example}"
        )


def check_old_file(path: str, *, once: bool = True) -> None:
    """Check that a file can be read to its end without waiting for somebody to write it.

    Args:
        path: Its name.
        once: Whether it is read once, as what a shell puts in the place of ``<(command)`` can be.

    Raises:
        ValueError: It is a pipe that waits for a writer, or a device, which may have no end.

    """
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return  # who opens it says why that cannot be done
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return
    # One without a name of its own has a writer already.
    if not (once and stat.S_ISFIFO(mode) and not os.path.exists(os.path.realpath(path))):
        raise ValueError(f"{path}: is a pipe or a device, and no plain file")


def check_new_files(files: Iterable[tuple[str, str]], others: Mapping[str, str]) -> None:
    """Check the files of several options, each by ``check_new_file``, and that no two are one.

    Args:
        files: The option and the name for each; an empty name is none.
        others: Names of files by options that are not checked, which must be others, too.

    Raises:
        ValueError: One cannot be written, is a program, or is that of another option.

    """
    taken = {os.path.realpath(path): flag for flag, path in others.items() if path}
    for flag, path in files:
        if not path:
            continue
        try:
            check_new_file(path, flag)
        except ValueError as error:
            raise ValueError(f"{flag}: {error}") from None
        real = os.path.realpath(path)
        # no pipe, no device
        if real in taken and (os.path.isfile(path) or not os.path.exists(path)):
            raise ValueError(f"{flag}: {path!r} is the file of {taken[real]}, too: name another")
        taken[real] = flag


def _is_program(path: str) -> bool:
    """Whether a file begins as one that the kernel executes."""
    try:
        if not os.path.isfile(path):  # a pipe would lose what is read
            return False
        with open(path, "rb") as file:
            return file.read(len(_ELF)).startswith((b"#!", _ELF))
    except OSError:
        return False
