"""Which block holds the keys and values of which prefix.

A full block is known by a hash of its tokens and of the hash of the block before it, so that equal
hashes mean equal text from the very beginning. Who holds a block is counted in ``block_pool``.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

__all__ = ["ROOT_HASH", "PrefixCache", "block_hash"]

_DIGEST_SIZE = 16
# What the first block of every request has in place of a parent's hash.
ROOT_HASH = hashlib.blake2b(b"sample_engine.kv_cache", digest_size=_DIGEST_SIZE).digest()


def block_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """The hash of a full block. The same in every process: nothing random goes into it.

    128 bits of BLAKE2b: two texts with the same hash would share keys and values, so it has to be
    a hash for which none are known.
    """
    return hashlib.blake2b(
        parent + array("q", token_ids).tobytes(), digest_size=_DIGEST_SIZE
    ).digest()


class PrefixCache:
    """Hash to block and back; at most one block for a hash, at most one hash for a block."""

    def __init__(self) -> None:
        self._block_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._block_of)

    def __contains__(self, block_id: object) -> bool:
        """Whether a block has contents that can be found."""
        return block_id in self._hash_of

    def find(self, hashes: Sequence[bytes]) -> list[int]:
        """The blocks of a chain of hashes, up to the first that is not there."""
        found = []
        for each in hashes:
            block_id = self._block_of.get(each)
            if block_id is None:
                break
            found.append(block_id)
        return found

    def put(self, each: bytes, block_id: int) -> bool:
        """Let a block be found. The first block of a hash stays: others of its kind are copies.

        Returns whether this is the first.
        """
        if each in self._block_of:
            return False
        assert block_id not in self._hash_of, f"block {block_id} has other contents already"
        self._block_of[each] = block_id
        self._hash_of[block_id] = each
        return True

    def forget(self, block_id: int) -> None:
        """The block is about to be overwritten. Harmless for a block that cannot be found."""
        each = self._hash_of.pop(block_id, None)
        if each is not None:
            del self._block_of[each]
