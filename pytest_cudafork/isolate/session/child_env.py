"""Owns the key under which a test says what its child's environment has beyond this process's.

It does not know who says so, nor how a child is started.
"""

from __future__ import annotations

import pytest

CHILD_ENV = pytest.StashKey[dict[str, str]]()
"""Environment variables for the child of an item, set before any of its code is imported there.

An item that has some is never given a child that was started ahead of its turn by ``spawn``.
"""
