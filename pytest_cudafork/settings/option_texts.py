"""What the texts of the options mean: a reader for each, which says what is wrong with a text."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pytest_cudafork.settings import (
    AUTO,
    CAPTURES,
    GRAPH_BACKENDS,
    HEALTH,
    METHODS,
    NONE,
    Level,
)
from pytest_cudafork.settings.marker_values import SCOPES
from pytest_cudafork.settings.markers import MAPPED
from pytest_cudafork.settings.option import parse_file

if TYPE_CHECKING:
    from pytest_cudafork.settings.marker_map import MarkerMap


GRAPHS = (AUTO, *GRAPH_BACKENDS)
"""What ``--cuda-fork-graphs`` takes."""
UPDATES = ("all", "shrink")
"""What ``--cuda-fork-baseline-update`` takes."""
ISOLATE = (NONE, *METHODS, AUTO)
"""What ``--cuda-fork-isolate`` takes."""


def one_of(words: Sequence[str], what: str) -> Callable[[str], str]:
    """Return the reader of a text that is one of these words; ``what`` each of them is.

    It raises ValueError where the text is none of them.
    """

    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"{text!r} is not {what}: use {', '.join(words)}")
        return text

    return parse


def reader_in(module: str, name: str) -> Callable[[str], Any]:
    """Return the reader of that name in a module beside this one, which is loaded for a text."""

    def parse(text: str) -> Any:
        return getattr(importlib.import_module(f"{__package__}.{module}"), name)(text)

    return parse


parse_update = one_of(UPDATES, "a way to change it")
parse_isolate = one_of(ISOLATE, "a method")
parse_scope = one_of(SCOPES, "a scope of isolation")
parse_health = one_of(HEALTH, "a way to look after the GPU")
parse_graphs = one_of(GRAPHS, "a way to capture graphs")
parse_captures = one_of(CAPTURES, "a way to look at captures")
parse_expected = reader_in("intent", "parse_expected")
parse_kinds = reader_in("intent", "parse_kinds")
parse_github = reader_in("report_options", "parse_github")
parse_gpus = reader_in("gpu_requests", "parse_gpus")
_level_name = one_of([level.value for level in Level], "a level")


def parse_level(text: str) -> Level:
    """Read a level.

    Raises:
        ValueError: it is none of them.

    """
    return Level(_level_name(text))


def parse_marker_map(text: str) -> MarkerMap:
    """Read how markers of the suite are read.

    Raises:
        ValueError: a line is none, names no marker of ours, or makes a circle.

    """
    from pytest_cudafork.settings.marker_map import parse_map

    return parse_map(text, MAPPED)


def number_in(text: str) -> float:
    """Return the number that a text is; NaN, which is no limit of any kind, where it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def parse_limit(text: str) -> float:
    """Read a time limit in seconds; infinity stands for none.

    Raises:
        ValueError: it is not a number above 0.

    """
    seconds = number_in(text)
    if not seconds > 0:
        raise ValueError(
            f"{text!r} is not a time limit: use a number of seconds above 0, or inf for none"
        )
    return seconds


def parse_gib(text: str) -> int:
    """Read a number of GiB; returns bytes.

    Raises:
        ValueError: it is none.

    """
    try:
        size = int(float(text) * (1 << 30))
    except (ValueError, OverflowError):
        size = -1
    if size < 0:
        raise ValueError(f"{text!r} is not a number of GiB, as in 1 or 0.5")
    return size


def parse_profile(text: str) -> str:
    """Read the name of a profile, as an absolute path.

    Raises:
        ValueError: it is empty.

    """
    if not text:
        raise ValueError("it needs the name of a file")
    return parse_file(text)
