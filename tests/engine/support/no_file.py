"""What may have the name of a file and is none."""

from __future__ import annotations

import os
from pathlib import Path

KINDS = ("dangling", "loop", "folder", "pipe", "device")


def no_file(path: Path, kind: str) -> Path:
    """Put something of a kind in place of a file."""
    path.unlink(missing_ok=True)
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        where = {"dangling": "/no/such/blob", "loop": str(path), "device": "/dev/zero"}
        path.symlink_to(where[kind])
    return path
