"""What the texts of the options mean: a reader for each, which says what is wrong with a text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

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
    from pytest_cudafork.settings.gpu_requests import GpuChoice
    from pytest_cudafork.settings.marker_map import MarkerMap


GRAPHS = (AUTO, *GRAPH_BACKENDS)
"""What ``--cuda-fork-graphs`` takes."""
UPDATES = ("all", "shrink")
"""What ``--cuda-fork-baseline-update`` takes."""
ISOLATE = (NONE, *METHODS, AUTO)
"""What ``--cuda-fork-isolate`` takes."""


def parse_level(text: str) -> Level:
    """Read a level.

    Raises:
        ValueError: it is none of them.

    """
    return Level(_one_of(text, [level.value for level in Level], "a level"))


def parse_update(text: str) -> str:
    """Read how the baseline is changed.

    Raises:
        ValueError: it is no such way.

    """
    return _one_of(text, UPDATES, "a way to change it")


def parse_expected(text: str) -> int:
    """Read how many GPUs the session is promised.

    Raises:
        ValueError: it is no whole number of them.

    """
    from pytest_cudafork.settings import intent

    return intent.parse_expected(text)


def parse_kinds(text: str) -> tuple[str, ...]:
    """Read which tests that do not run as meant are errors.

    Raises:
        ValueError: one of them is no kind of these.

    """
    from pytest_cudafork.settings import intent

    return intent.parse_kinds(text)


def parse_marker_map(text: str) -> MarkerMap:
    """Read how markers of the suite are read.

    Raises:
        ValueError: a line is none, names no marker of ours, or makes a circle.

    """
    from pytest_cudafork.settings.marker_map import parse_map

    return parse_map(text, MAPPED)


def parse_isolate(text: str) -> str:
    """Read a method of isolation.

    Raises:
        ValueError: it is none of them.

    """
    return _one_of(text, ISOLATE, "a method")


def parse_scope(text: str) -> str:
    """Read which isolated tests share a process.

    Raises:
        ValueError: it is none of them.

    """
    return _one_of(text, SCOPES, "a scope of isolation")


def parse_health(text: str) -> str:
    """Read what becomes of the tests after one that has left the GPU sick.

    Raises:
        ValueError: it is none of what can.

    """
    return _one_of(text, HEALTH, "a way to look after the GPU")


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


def parse_graphs(text: str) -> str:
    """Read how graphs are captured.

    Raises:
        ValueError: there is no such backend.

    """
    return _one_of(text, GRAPHS, "a way to capture graphs")


def parse_captures(text: str) -> str:
    """Read what becomes of captures that tests make.

    Raises:
        ValueError: it is none of what can.

    """
    return _one_of(text, CAPTURES, "a way to look at captures")


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


def parse_github(text: str) -> tuple[str, ...]:
    """Read what to write for GitHub Actions.

    Raises:
        ValueError: one of the words is not known.

    """
    from pytest_cudafork.settings import report_options

    return report_options.parse_github(text)


def parse_gpus(text: str) -> GpuChoice:
    """Read which GPUs may be used.

    Raises:
        ValueError: it is no such text.

    """
    from pytest_cudafork.settings import gpu_requests

    return gpu_requests.parse_gpus(text)


def _one_of(text: str, words: Sequence[str], what: str) -> str:
    if text not in words:
        raise ValueError(f"{text!r} is not {what}: use {', '.join(words)}")
    return text
