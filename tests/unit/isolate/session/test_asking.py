"""Other plugins say how tests are isolated; what is no answer fails the test."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_cudafork.isolate.session.asking import AskPlugins
from pytest_cudafork.settings.markers import Marks, marks_of
from tests.unit.isolate.session import items_of

TESTS = """
import pytest
def test_plain(): pass
@pytest.mark.cuda_isolated(method="fork")
def test_marked(): pass
@pytest.mark.spawn_only
def test_spawned(): pass
"""


class Theirs:
    """A plugin that answers, or raises."""

    def __init__(self, answer: object) -> None:
        self.answer = answer
        self.asked: list[str] = []

    def pytest_cudafork_isolate(self, item: pytest.Item) -> Any:
        """Answer."""
        self.asked.append(item.name)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def asked(pytester: pytest.Pytester, *plugins: Theirs) -> dict[str, Marks]:
    """Return the marks of each test after the plugins have been asked."""
    items = items_of(pytester, TESTS)
    config = items[0].config
    for plugin in plugins:
        config.pluginmanager.register(plugin)
    AskPlugins(config).pytest_collection_finish(items[0].session)
    return {item.name: marks_of(item) for item in items}


def test_a_test_whose_markers_say_nothing_is_isolated_as_the_plugin_says(
    pytester: pytest.Pytester,
) -> None:
    theirs = Theirs("spawn")
    marks = asked(pytester, theirs)
    assert theirs.asked == ["test_plain"], "the others say how they are isolated"
    assert (marks["test_plain"].isolated, marks["test_plain"].method) == (True, "spawn")
    assert marks["test_marked"].method == "fork"


def test_the_first_answer_counts(pytester: pytest.Pytester) -> None:
    never, second, silent = Theirs("fork"), Theirs("auto"), Theirs(None)
    marks = asked(pytester, never, second, silent)  # pytest asks the last one first
    assert marks["test_plain"].method == "auto"
    assert (len(silent.asked), len(second.asked), len(never.asked)) == (1, 1, 0)


def test_without_an_answer_everything_is_as_ever(pytester: pytest.Pytester) -> None:
    assert asked(pytester)["test_plain"] == Marks()
    assert asked(pytester, Theirs(None))["test_plain"] == Marks()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (ValueError("oops"), "pytest_cudafork_isolate raised ValueError: oops"),
        ("thread", "returned 'thread': use one of fork, forkserver, spawn, auto, or None"),
        (True, "returned True: use one of"),
    ],
)
def test_what_is_no_answer_is_told_by_the_test(
    pytester: pytest.Pytester, answer: object, words: str
) -> None:
    marks = asked(pytester, Theirs(answer))["test_plain"]
    assert words in marks.complaint
    assert not marks.isolated
