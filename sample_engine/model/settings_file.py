"""The files of a model's folder that are JSON or text: read, with words for what is wrong.

It imports no torch.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sample_engine.errors import ConfigError

__all__ = ["read_settings", "read_text"]

_MOST_BYTES = 1 << 24


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
