"""Results kept in a file, a line of JSON each, by calls that may be killed while they write."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file, in order; a line that was cut short is none, nor is no file."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        with suppress(ValueError):
            rows.append(json.loads(line))
    return rows


def add_row(path: Path, row: dict[str, Any]) -> None:
    """Append a row, behind a new line where the last one was cut short."""
    before = path.read_bytes() if path.exists() else b""
    torn = bool(before) and not before.endswith(b"\n")
    with open(path, "a", encoding="utf-8") as file:
        file.write("\n" * torn + json.dumps(row) + "\n")
