"""What the metadata of installed distributions say, with nothing said for what is broken.

An installation that was interrupted leaves metadata without a name or a version, in no encoding, or
none at all. ``importlib.metadata`` answers that with None, a ``DeprecationWarning`` (3.12), a
``KeyError``, or an error of its own (3.15), and its backport has metadata that are None.
"""

from __future__ import annotations

import importlib.metadata
import json
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit


class Source(NamedTuple):
    """The folder that pip has installed a distribution from, and whether it is used in place."""

    folder: str
    editable: bool


def field(distribution: importlib.metadata.Distribution, key: str) -> str:
    """Return one field of a distribution, such as "Name"; "" without it."""
    metadata = _metadata_of(distribution)
    return "" if metadata is None else str(metadata.get(key) or "")


def text(distribution: importlib.metadata.Distribution, file: str) -> str:
    """Return a file of a distribution's metadata, such as "RECORD"; "" where it cannot be read."""
    try:
        return distribution.read_text(file) or ""
    except (OSError, ValueError, KeyError):
        return ""


def source_of(direct_url: str) -> Source | None:
    """Read pip's ``direct_url.json``; None where it was no folder, or nothing of that can be read.

    Args:
        direct_url: The text of the file.

    """
    try:
        told: Any = json.loads(direct_url)
        url, editable = urlsplit(told["url"]), bool(told["dir_info"].get("editable"))
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    return Source(unquote(url.path), editable) if url.scheme == "file" else None


def version_of(name: str) -> str | None:
    """Return the version of the distribution of a name; "" where it is broken, None without one."""
    found = _named(name)
    return None if found is None else field(found, "Version")


def requirements_of(name: str) -> list[str]:
    """Return what the distribution of a name requires; [] where there is none, or it is broken."""
    found = _named(name)
    try:
        return [] if found is None else list(found.requires or ())
    except (OSError, ValueError, KeyError):
        return []


def _named(name: str) -> importlib.metadata.Distribution | None:
    try:
        return importlib.metadata.distribution(name)
    except (OSError, ValueError, KeyError, ImportError):
        return None


def _metadata_of(distribution: importlib.metadata.Distribution) -> Any:
    """Return what ``email`` has parsed, asked by ``get``, which warns in no release; or None."""
    try:
        return distribution.metadata
    except (OSError, ValueError, KeyError):
        return None
