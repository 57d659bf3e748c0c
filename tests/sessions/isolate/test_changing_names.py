"""Isolated tests whose ids are others in every process."""

from __future__ import annotations

import pytest

from tests.support.isolation import METHODS
from tests.support.sessions import run_session

SUITE = """
import os
import time

import pytest

NOW = time.time_ns()

@pytest.mark.parametrize("now", [NOW, NOW + 1, NOW + 2])
def test_time(now):
    with open("seen", "a") as file:
        file.write(f"{now - NOW} ")

@pytest.mark.parametrize("one", [object(), object()], ids=lambda one: f"{os.getpid()}-{id(one)}")
class TestClass:
    def test_object(self, one):
        pass

@pytest.mark.parametrize("letter", {"a", "b", "c", "d"})
def test_set(letter, request):
    assert request.node.name == f"test_set[{letter}]"
    with open("letters", "a") as file:
        file.write(letter)
"""


@pytest.mark.parametrize("method", METHODS)
def test_they_are_found_by_their_place_whatever_was_deselected(
    pytester: pytest.Pytester, method: str
) -> None:
    pytester.makepyfile(SUITE)
    pytester.makeconftest(
        "def pytest_collection_modifyitems(items): items[:] = items[:0:-1]  # all but the first"
    )
    result = run_session(pytester, f"--cuda-fork-isolate={method}")
    result.assert_outcomes(passed=8)
    assert (pytester.path / "seen").read_text() == "2 1 "
    assert sorted((pytester.path / "letters").read_text()) == ["a", "b", "c", "d"]


def test_where_their_number_changes_too_the_report_says_what_was_found(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile("""
        import os, pytest
        with open("imports", "a") as file:
            file.write("x")

        @pytest.mark.parametrize("pid", [os.getpid()] * os.path.getsize("imports"), ids=str)
        def test_it(pid): pass
    """)
    result = run_session(pytester, "--cuda-fork-isolate=spawn")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*It found 2 tests*", "*the same in every process?"])


SAME_NAMES = """
import pytest

class It(pytest.Item):
    def runtest(self):
        with open("ran", "a") as file:
            file.write(str(self.number))
        assert self.number != 2

class Numbers(pytest.File):
    def collect(self):
        for number in range(4):
            item = It.from_parent(self, name="same")
            item.number = number
            yield item

def pytest_collect_file(file_path, parent):
    if file_path.suffix == ".numbers":
        return Numbers.from_parent(parent, path=file_path)
"""


@pytest.mark.parametrize("scope", ["test", "module"])
@pytest.mark.parametrize("method", METHODS)
def test_each_of_several_tests_of_one_name_runs(
    pytester: pytest.Pytester, method: str, scope: str
) -> None:
    pytester.makeconftest(SAME_NAMES)
    (pytester.path / "it.numbers").touch()
    how = (f"--cuda-fork-isolate={method}", f"--cuda-fork-isolate-scope={scope}")
    run_session(pytester, *how).assert_outcomes(passed=3, failed=1)
    assert (pytester.path / "ran").read_text() == "0123"
