"""Sizes of memory in words: ``20GiB`` to bytes, and bytes to ``20 GiB``."""

from __future__ import annotations

import re

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([KMGT]?)(?:i?B)?", re.I | re.A)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def read_size(text: str) -> int:
    """Read a size in bytes, for instance ``20GiB``, ``20G`` or ``512M``; units are powers of 1024.

    Raises:
        ValueError: it is no size.

    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size: write 512M or 4G")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def spell_size(size: int) -> str:
    """Return a number of bytes as people read it, for instance ``20 GiB`` or ``1.5 GiB``."""
    for name in ("TiB", "GiB", "MiB", "KiB"):
        unit = _UNITS[name[0]]
        if size >= unit:
            return f"{f'{size / unit:.1f}'.removesuffix('.0')} {name}"
    return f"{size} B"
