"""The files of a model's folder that are JSON or text: read, with words for what is wrong.

It imports no torch.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from sample_engine.errors import ConfigError

__all__ = ["is_there", "read_settings", "read_text", "why_no_file"]

_MOST_BYTES = 1 << 24


def is_there(path: Path) -> bool:
    """Whether a model's folder has a file of this name.

    Raises :class:`ConfigError` where something else has its name: to go on as if the model came
    without the file would make another model of it.
    """
    why = why_no_file(path)
    if why:
        raise ConfigError(f"{str(path)!r} {why}")
    return os.path.lexists(path)


def why_no_file(path: Path) -> str | None:
    """In words why what has this name is no file; None: it is one, or nothing has the name."""
    try:
        is_file = stat.S_ISREG(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # no name has a NUL
        if not path.is_symlink():
            return None
        where = str(path.readlink())
        return (
            f"is a link to {where!r}, which is not there: fetch the model anew, or mend the link."
        )
    except OSError as error:  # a name that is too long, a folder that is somebody else's
        return f"cannot be looked at: {error}."
    return None if is_file else "is no file, but a folder, a pipe or a device: put the file there."


def read_settings(path: Path) -> dict[str, Any]:
    """Return what a file of JSON holds. Raises :class:`ConfigError` where that is no object."""
    text = read_text(path)
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{str(path)!r} cannot be read as JSON: {error}.") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{str(path)!r} holds no JSON object.")
    return values


def read_text(path: Path) -> str:
    """Return a file's text. Raises :class:`ConfigError` where it cannot be read."""
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise ConfigError(f"{str(path)!r} has more than {_MOST_BYTES} bytes.")
        return data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{str(path)!r} cannot be read: {error}.") from error
