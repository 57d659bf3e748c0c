"""Tests that run in the place of pytest-forked: which, and its words for how one crashed.

Used in every process of the session; ``isolate/session/forked_option.py`` decides.
"""

import signal
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from pytest_cudafork.errors import ChildError

MARKER = "forked"


# Annotations of this module are no texts: NamedTuple compiles each, while the plugin is imported.
class Claim(NamedTuple):
    """Whether ``--forked`` and its marker are this plugin's, and whether the option is given."""

    ours: bool = False
    every_test: bool = False


PEER = "pytest_forked"
"""The name under which pytest-forked is registered, and its module."""

CLAIM = pytest.StashKey[Claim]()


def claim_of(config: pytest.Config) -> Claim:
    """Return what a session has settled; nothing is ours before it has."""
    return config.stash.get(CLAIM, Claim())


def is_marked(item: pytest.Item) -> bool:
    """Whether the test is to be isolated because of the marker."""
    return claim_of(item.config).ours and item.get_closest_marker(MARKER) is not None


def complaint(item: pytest.Item) -> str:
    """Return what is wrong with the marker of a test, or ""."""
    mark = item.get_closest_marker(MARKER) if claim_of(item.config).ours else None
    if mark is None or not (mark.args or mark.kwargs):
        return ""
    return (
        f"@pytest.mark.forked takes no arguments, not {_call(mark)}: write @pytest.mark.forked, or "
        "use cuda_isolated(method=..., timeout=...)"
    )


def _call(mark: pytest.Mark) -> str:
    shown: list[Any] = [repr(arg) for arg in mark.args]
    shown += [f"{name}={value!r}" for name, value in mark.kwargs.items()]
    return f"forked({', '.join(shown)})"


def crash_line(item: pytest.Item, error: "ChildError") -> str:
    """Return pytest-forked's line for a crash of a test that runs in its place; else "".

    Programs that read logs look for it.
    """
    from pytest_cudafork.errors import ChildCrashed  # not before a test has crashed

    if not isinstance(error, ChildCrashed) or error.exitcode is None:
        return ""
    if not (claim_of(item.config).every_test or is_marked(item)):
        return ""
    path, line, _ = item.location
    return f"{path}:{(line or 0) + 1}: running the test {_ended(error.exitcode)}"


def expected(reason: str, line: str) -> str:
    """Return why a crash was expected, from the reason of the mark and the line for the crash."""
    first = f"{reason}; " if reason else ""
    return f"reason: {first}pytest-cudafork reason: {line}"


def _ended(exitcode: int) -> str:
    if exitcode >= 0:
        return f"EXITED with status {exitcode}"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = "UNKNOWN"
    return f"CRASHED with signal {-exitcode} ({name})"
