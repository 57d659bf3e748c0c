"""Checks that this machine can build the project, before anything is installed.

A Python that is too old can run this file as well, so it keeps to syntax that Python 2 reads, too.
"""

# ruff: noqa: UP031

import os
import shlex
import sys

OLDEST = (3, 10)


def which(command):
    """Return the path of a command, or "" if there is none."""
    if os.sep in command:
        return command if os.access(command, os.X_OK) else ""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    paths = [os.path.join(folder, command) for folder in folders]
    return next((path for path in paths if os.access(path, os.X_OK)), "")


def complaint():
    """Return what is missing here, with the next step; "" if nothing is."""
    if sys.version_info[:2] < OLDEST:
        return (
            "pytest-cudafork needs Python 3.10 or later; %s is %d.%d: name another one, as in "
            "make test PYTHON=python3.12"
            % (sys.executable, sys.version_info[0], sys.version_info[1])
        )
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        return (
            "%s has no venv module: install it (Debian, Ubuntu: apt install python3-venv)"
            % sys.executable
        )
    chosen = os.environ.get("CC")
    compilers = [shlex.split(chosen)[0]] if chosen else ["cc", "gcc", "clang"]
    if not any(which(compiler) for compiler in compilers):
        return (
            "no C compiler: %s is not to be found; the tests need the native libraries (Debian, "
            "Ubuntu: apt install gcc libc6-dev)" % ", ".join(compilers)
        )
    return ""


if __name__ == "__main__":
    sys.exit(complaint() or 0)
