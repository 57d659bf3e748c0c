"""Isolated tests with pytest-bdd: its terminal, and the file for Cucumber."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.isolation import METHODS
from tests.support.isolation_plugins import same

FILES = {
    "it.feature": """
    Feature: Numbers
      Scenario: one
        Given there are 3
        Then it is 3
      Scenario Outline: two
        Given there are <a>
        Then it is <b>
        Examples:
          | a | b |
          | 1 | 1 |
          | 1 | 2 |
    """,
    "test_it.py": """
    from pytest_bdd import given, parsers, scenarios, then

    scenarios("it.feature")

    @given(parsers.parse("there are {n:d}"), target_fixture="n")
    def there_are(n):
        return n

    @then(parsers.parse("it is {m:d}"))
    def it_is(n, m):
        assert n == m
    """,
}


def _steps(path: Path) -> list[Any]:
    """Return the scenarios of a file with the steps of each and how they ended."""
    return [
        (scenario["id"], [(step["name"], step["result"]["status"]) for step in scenario["steps"]])
        for feature in json.loads(path.read_text())
        for scenario in feature["elements"]
    ]


@pytest.mark.parametrize("scope", ["test", "module"])
def test_scenarios_are_in_the_file_for_cucumber(tmp_path: Path, scope: str) -> None:
    run = f"--cucumberjson=out.json --cuda-fork-isolate-scope={scope} -p no:hypothesispytest"
    same(tmp_path, METHODS, ["bdd"], FILES, run)
    expected = _steps(tmp_path / "before/out.json")
    assert [len(steps) for _, steps in expected] == [2, 2, 2]
    for method in METHODS:
        assert _steps(tmp_path / method / "out.json") == expected, method


def test_its_terminal_shows_them(tmp_path: Path) -> None:
    run = "--gherkin-terminal-reporter -vv"
    for sessions in same(tmp_path, METHODS, ["bdd"], FILES, run).values():
        assert "Scenario Outline: two" in str(sessions[0])


@pytest.mark.skipif(pytest.version_tuple < (9, 0), reason="subtests came with pytest 9")
def test_subtests_of_other_tests_are_reported(tmp_path: Path) -> None:
    text = """
    def test_it(subtests):
        for number in range(3):
            with subtests.test(number=number):
                assert number != 1
    """
    same(tmp_path, METHODS, ["bdd"], {"test_it.py": text}, "-v")
