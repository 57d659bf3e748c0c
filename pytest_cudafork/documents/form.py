"""The form that all JSON of this package has: what a document begins with, and its common parts.

``schema.json`` beside this module says the same to programs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pytest_cudafork._version import version
from pytest_cudafork.observe.story.advice import advise
from pytest_cudafork.observe.story.plain_text import plain
from pytest_cudafork.observe.story.source import source_line
from pytest_cudafork.observe.story.touch import Frame, Touch
from pytest_cudafork.observe.story.words import headline

FORMAT = "pytest-cudafork"
FORMAT_VERSION = 1
"""A document of the same version may have more keys; one that lacks a key, or has another meaning
for it, has another version."""
KINDS = ("session", "audit", "run", "doctor", "attach", "explain")
"""What a document may be about."""


def head(kind: str) -> dict[str, Any]:
    """Return what a document of this kind begins with."""
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "kind": kind,
        "plugin_version": version,
    }


def plain_touch(touch: Touch) -> dict[str, Any]:
    """Return a touch as plain data."""
    return {
        "process": touch.pid,
        "call": touch.entry,
        "library": touch.library,
        "culprit": touch.where,
        "words": headline(touch),
        "at_import": touch.at_import,
        "poisoned": touch.poisoned,
        "again": touch.again,
        "test": touch.test,
        "phase": touch.phase,
        "imported_through": plain_stack(touch.import_chain),
        "stack": plain_stack(touch.frames),
        "advice": advise(touch),
    }


def plain_stack(frames: Iterable[Frame]) -> list[dict[str, Any]]:
    """Return frames as plain data."""
    return [
        {
            "file": plain(frame.filename),
            "line": frame.lineno,
            "function": frame.name,
            "code": source_line(frame.filename, frame.lineno),
        }
        for frame in frames
    ]
