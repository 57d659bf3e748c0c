"""Isolated tests with Hypothesis."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.isolation import METHODS
from tests.support.isolation_compare import Sessions
from tests.support.isolation_plugins import needs, same, write

HYPOTHESIS = """
    import pytest
    from hypothesis import event, given, settings, strategies as st

    @given(st.booleans())
    def test_good(yes):
        event(str(yes))

    @given(st.lists(st.integers()))
    @settings(max_examples=500)
    def test_bad(numbers):
        assert sum(numbers) < 1000

    @pytest.mark.parametrize("word", ["a", "b"])
    @given(number=st.integers(0, 5))
    def test_parameters(word, number):
        assert number < 5 or word == "a"

    @given(st.integers())
    def test_fixture(tmp_path, number):
        pass
"""


CONFTEST = """
    import hypothesis

    # how long an example takes says how busy the machine is
    slow = [hypothesis.HealthCheck.too_slow]
    hypothesis.settings.register_profile("busy", deadline=None, suppress_health_check=slow)
    hypothesis.settings.load_profile("busy")
"""
FILES = {"test_it.py": HYPOTHESIS, "conftest.py": CONFTEST}
TIMINGS = (
    r"Typical runtimes:",
    r"^ +- during \w+ phase \([\d.]+ seconds\)",
    r"hypothesis-statistics-",
)


def test_hypothesis_shows_the_same_examples_and_statistics(tmp_path: Path) -> None:
    runs = ("--hypothesis-seed=3 --hypothesis-show-statistics", "--lf --hypothesis-seed=4")
    for seen in same(tmp_path, METHODS, ["hypothesis"], FILES, *runs, known=TIMINGS).values():
        assert any("Hypothesis Statistics" in line for line in seen[0].stdout)
        assert any("<property name='hypothesis-statistics-" in line for line in seen[0].junit)


@pytest.mark.parametrize("method", METHODS)
def test_the_database_of_hypothesis_is_written_and_read(tmp_path: Path, method: str) -> None:
    write(tmp_path, {**FILES, "pytest.ini": "[pytest]\n"})
    sessions = Sessions(tmp_path, "-k", "bad", plugins=[needs("hypothesis")])
    sessions.run(method)
    examples = [path for path in (tmp_path / ".hypothesis").rglob("examples/*/*") if path.is_file()]
    assert examples
    again = sessions.run(method, "--hypothesis-show-statistics")
    assert any("during reuse phase" in line for line in again.stdout), again.stdout
