"""From the name of a script or module to the command that runs it in a fresh interpreter."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from pytest_cudafork.settings.arguments import is_c_string

_TOLD_BY_INTERPRETER = ("No module named", "Error while finding module specification")
_NO_MAIN = ("can't find '__main__' module in", "can't open file")


def command_of(
    script: str | os.PathLike[str], arguments: Sequence[object], cwd: str | None = None
) -> list[str]:
    """Return the command that runs a script, or a module as ``python -m`` does.

    A path is an ``os.PathLike``, or a text that holds a separator, ends in ``.py`` or names
    something that exists; any other text is the name of a module.

    Raises:
        FileNotFoundError: There is no such script.
        IsADirectoryError: It is a folder without a ``__main__.py``.
        TypeError: It is neither a path nor a text; an argument is none of text, path and number.
        ValueError: It is no path and no name of a module; no program can be given an argument.

    """
    words = [_word(argument) for argument in arguments]
    if not isinstance(script, str | os.PathLike):
        raise TypeError(f"run_script takes a path or the name of a module, not {script!r}")
    name = os.fspath(script)
    if not isinstance(name, str):
        raise TypeError(f"run_script takes a path of text, not of bytes: {name!r}")
    place = os.path.join(cwd or os.curdir, name)
    is_path = not isinstance(script, str) or os.sep in name or name.endswith(".py")
    if is_path or os.path.isfile(place):
        _check_path(name, place)
        # The interpreter would take a name with a dash at its beginning for an option.
        return [sys.executable, os.path.join(os.curdir, name) if name[:1] == "-" else name, *words]
    if not all(part.isidentifier() for part in name.split(".")):
        where = os.path.abspath(cwd or os.curdir)
        raise ValueError(
            f"{name!r} is no name of a module, and there is no file of that name in {where}"
        )
    return [sys.executable, "-m", name, *words]


def _check_path(name: str, place: str) -> None:
    if os.path.isdir(place):
        if not os.path.isfile(os.path.join(place, "__main__.py")):
            raise IsADirectoryError(
                f"{name!r} is a folder without a __main__.py: name the script in it that is to run"
            )
    elif not os.path.exists(place):
        where = os.path.abspath(os.path.dirname(place))
        near = f"the folder {where} is there" if os.path.isdir(where) else f"nor is {where}"
        raise FileNotFoundError(f"there is no script {name!r} ({near})")
    elif not os.access(place, os.R_OK):
        raise PermissionError(f"the script {name!r} may not be read by this user")


def _word(argument: object) -> str:
    word: object = os.fspath(argument) if isinstance(argument, os.PathLike) else argument
    if not isinstance(word, str | int | float) or isinstance(word, bool):
        raise TypeError(
            f"an argument of a script is a text, a path or a number, not {argument!r}: write it out"
        )
    text = str(word)
    if not is_c_string(text):
        raise ValueError(f"no program can be given the argument {argument!r}")
    return text


def never_ran(command: Sequence[str], exitcode: int, stderr: str) -> str:
    """Return the interpreter's words if it found nothing to run; "" if it ran something."""
    if exitcode == 0 or not stderr.startswith(f"{command[0]}: "):
        return ""
    words = stderr.removeprefix(f"{command[0]}: ").strip()
    known = _TOLD_BY_INTERPRETER if command[1] == "-m" else _NO_MAIN
    return words if words.startswith(known) else ""
