"""The numbers and texts of Python that code carries, and which of them have changed.

A graph may have frozen any of them: those that changed are the suspects.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from pytest_cudafork.capture.state.carried import closure_of
from pytest_cudafork.capture.state.compare import short
from pytest_cudafork.capture.state.state_tree import (
    Kind,
    TooManyObjectsError,
    is_array,
    is_plain,
    walk,
)

_MOST_ITEMS = 1000
_MOST_TOLD = 4
_TOLD = (bool, int, float, str, bytes, type(None))


def host_values(roots: Mapping[str, Any]) -> dict[str, Any]:
    """Return by path the plain values below these; what hangs below two roots, once."""
    found: dict[str, Any] = {}
    seen: list[Any] = []
    for name, root in roots.items():
        with contextlib.suppress(TooManyObjectsError):
            for node in walk(root, name, skip=seen):
                value = node.value
                if node.kind is Kind.VALUE:
                    if isinstance(value, _TOLD):
                        found[node.path] = value
                    continue
                seen.append(value)
                plain = is_plain(value) and not isinstance(value, dict) and not is_array(value)
                if plain and len(value) <= _MOST_ITEMS:
                    found[node.path] = list(value)
    return found


def carried_values(roots: Mapping[str, Any], fn: Any, prefix: str = "") -> dict[str, Any]:
    """Return the plain values below these and below what a callable carries, by path."""
    return host_values({**roots, **{f"{prefix}{name}": at for name, at in closure_of(fn).items()}})


def what_changed(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Say which values are others now than they were at capture; "": none."""
    words = [
        f"{path} ({short(then[path])} -> {short(value)})"
        for path, value in now.items()
        if path in then and then[path] != value
    ]
    if not words:
        return ""
    more = f" and {len(words) - _MOST_TOLD} more" if len(words) > _MOST_TOLD else ""
    return f"; values of Python that have changed since the capture: {', '.join(words[:4])}{more}"
