"""A script: whether a module can be imported, and its version, into a file."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence


def main(name: str, report: str, path: Sequence[str]) -> None:
    """Import a module and write what came of it; the import may print what it likes.

    Args:
        name: The module.
        report: The file to write.
        path: Where modules are looked for: what the doctor has, which has judged the files there.

    """
    sys.path[:] = path
    error = version = ""
    try:
        version = str(getattr(importlib.import_module(name), "__version__", ""))
    except BaseException as failed:  # whatever a broken build raises is the answer
        error = f"{type(failed).__name__}: {failed}"
    with open(report, "w", encoding="utf-8") as file:
        json.dump({"error": error, "version": version}, file)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.load(sys.stdin))
