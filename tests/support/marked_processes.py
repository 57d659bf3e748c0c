"""Processes that are known by a mark in the environment that they were started with."""

from __future__ import annotations

import os
from pathlib import Path


def marked_processes(mark: str) -> dict[int, str]:
    """Return the living processes that bear a mark, with their commands; this one is left out."""
    found = {}
    for name in os.listdir("/proc"):
        try:
            if not name.isdigit() or int(name) == os.getpid():
                continue
            if mark.encode() not in Path(f"/proc/{name}/environ").read_bytes():
                continue
            state = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z":
                command = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ")
                found[int(name)] = command.decode(errors="replace").strip()[:200]
        except OSError:  # it has ended, or is somebody else's
            continue
    return found
