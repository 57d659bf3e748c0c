"""A block as it is stored: a header that tells a whole block from any other bytes, and the block.

The header holds the version of the layout, the length, a checksum of the block, and a digest of
the key under which it was stored. A block that was written in part or cut short, that belongs to
another key or comes from another version, fails one of these and is never used.
"""

from __future__ import annotations

import hashlib
import struct
import zlib

__all__ = ["HEADER_BYTES", "LAYOUT_VERSION", "header_of", "namespace_of", "why_not_whole"]

LAYOUT_VERSION = 1
"""Of what is in a block in which order, and of this header: others share nothing with this one."""

_MAGIC = b"SEKV"
_HEADER = struct.Struct("<4sHxxIQ16s")
HEADER_BYTES = _HEADER.size

Bytes = bytes | bytearray | memoryview


def namespace_of(model_hash: str, dtype: str, block_size: int) -> str:
    """What the keys of all blocks of an engine begin with: who differs in it, shares nothing."""
    return f"v{LAYOUT_VERSION}-{model_hash}-{dtype}-{block_size}"


def header_of(key: str, block: Bytes) -> bytes:
    """The header of a block that is stored under a key."""
    return _HEADER.pack(_MAGIC, LAYOUT_VERSION, zlib.crc32(block), len(block), _digest(key))


def why_not_whole(key: str, header: Bytes, block: Bytes) -> str | None:
    """Why these bytes are not the block of that key, in words; None: they are."""
    if len(header) < HEADER_BYTES:
        return f"its header has {len(header)} bytes instead of {HEADER_BYTES}"
    magic, version, checksum, length, digest = _HEADER.unpack(header)
    if magic != _MAGIC:
        return f"it begins with {bytes(magic)!r}: it is no block of this engine"
    if version != LAYOUT_VERSION:
        return f"it has the layout version {version}, this engine reads {LAYOUT_VERSION}"
    if length != len(block):
        return f"it has {length} bytes instead of {len(block)}"
    if digest != _digest(key):
        return "it belongs to another key"
    if checksum != zlib.crc32(block):
        return "its checksum does not fit: it was damaged, or written in part"
    return None


def _digest(key: str) -> bytes:
    return hashlib.blake2b(key.encode(), digest_size=16).digest()
