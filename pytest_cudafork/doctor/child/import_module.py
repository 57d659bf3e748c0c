"""A script: whether a module can be imported, and its version, into a file."""

from __future__ import annotations

import importlib
import json
import os
import sys


def main(name: str, report: str) -> None:
    """Import a module and write what came of it; the import may print what it likes."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != here]
    sys.path.insert(0, os.getcwd())  # as `python -m` has it
    error = version = ""
    try:
        version = str(getattr(importlib.import_module(name), "__version__", ""))
    except BaseException as failed:  # whatever a broken build raises is the answer
        error = f"{type(failed).__name__}: {failed}"
    with open(report, "w", encoding="utf-8") as file:
        json.dump({"error": error, "version": version}, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
