"""Long stories are one group in the log of a CI service, and short ones lines as ever."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_cudafork.report.ci_groups import FEW, Told, write_group
from tests.unit.report.test_terminal import Terminal


def written(number: int) -> list[str]:
    """Return what is written of so many lines."""
    terminal: Any = Terminal()
    write_group(terminal, "the title", [Told(f"line {n}", {"red": n == 0}) for n in range(number)])
    reds = [line for line, looks in terminal.lines if "red" in looks]
    assert reds == ["line 0"]
    return [line for line, _ in terminal.lines]


@pytest.fixture(autouse=True)
def no_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """No CI service runs this, whatever does."""
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.delenv("BUILDKITE", raising=False)


@pytest.mark.parametrize(
    ("service", "before", "after"),
    [
        ("GITHUB_ACTIONS", "::group::the title", "::endgroup::"),
        ("BUILDKITE", "--- the title", "+++ after: the title"),
    ],
)
def test_many_lines_are_a_group_where_there_are_groups(
    monkeypatch: pytest.MonkeyPatch, service: str, before: str, after: str
) -> None:
    lines = [f"line {n}" for n in range(FEW + 1)]
    assert written(FEW + 1) == lines, "no service"
    monkeypatch.setenv(service, "true")
    assert written(FEW + 1) == [before, *lines, after]
    assert written(FEW) == lines[:-1]
    monkeypatch.setenv(service, "false")
    assert written(FEW + 1) == lines
