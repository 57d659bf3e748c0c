"""Folds what is long in the log of a CI service, where that service shows groups of lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from pytest_cudafork.settings import environment

FEW = 15
"""Lines that are not folded: they are read faster than opened."""


class Told(NamedTuple):
    """A line that is to be written, and its looks."""

    text: str
    markup: dict[str, bool]


def write_group(terminal: pytest.TerminalReporter, title: str, lines: Sequence[Told]) -> None:
    """Write lines; many of them as one group, in the log of a service that has groups.

    GitHub Actions folds what is between its two commands. Buildkite folds from a line with three
    hyphens on up to the next such line, so one that stays open follows.
    """
    before, after = _frame(title) if len(lines) > FEW else ("", "")
    _command(terminal, before)
    for line in lines:
        terminal.write_line(line.text, **line.markup)
    _command(terminal, after)


def _frame(title: str) -> tuple[str, str]:
    if environment.value(environment.GITHUB_ACTIONS) == "true":
        return f"::group::{title}", "::endgroup::"
    if environment.value(environment.BUILDKITE) == "true":
        return f"--- {title}", f"+++ after: {title}"
    return "", ""


def _command(terminal: Any, text: str) -> None:
    if text:
        terminal.ensure_newline()  # a service knows it by the beginning of its line
        terminal.write_line(text)
