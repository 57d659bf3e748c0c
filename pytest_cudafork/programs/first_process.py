"""Whether the first process of a program is a Python, told by the file that is executed.

Only a Python can be watched from within. Of another program (a shell script that starts servers)
the driver alone tells, and its Python descendants tell for themselves.
"""

from __future__ import annotations

from collections.abc import Mapping

from pytest_cudafork.compat.unpatched import io, os, re, shutil

_PYTHON = re.compile(r"(python|pypy)[\d.]*t?")
_MOST_BYTES = 256
_MOST_STEPS = 5
"""The kernel follows so many ``#!`` lines, too."""


def is_python(word: str, env: Mapping[str, str]) -> bool:
    """Return whether the program of this name is run by a Python interpreter.

    Args:
        word: As a shell would look for it.
        env: The environment with the ``PATH`` in which it is looked for.

    """
    for _ in range(_MOST_STEPS):
        if _PYTHON.fullmatch(os.path.basename(word)):
            return True
        interpreter = _interpreter(shutil.which(word, path=env.get("PATH")) or word)
        if not interpreter:
            return False
        word = interpreter
    return False


def _interpreter(path: str) -> str:
    """Return what the ``#!`` line of a file names; "" if it has none."""
    try:
        if not os.path.isfile(path):
            return ""
        with io.open(path, "rb") as file:
            line = file.read(_MOST_BYTES).split(b"\n", 1)[0]
    except OSError:
        return ""
    if not line.startswith(b"#!"):
        return ""
    words = os.fsdecode(line[2:]).split()
    if words and os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    return words[0] if words else ""
