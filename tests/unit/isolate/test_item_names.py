"""Tests of what names a test in any session over the same files."""

from __future__ import annotations

import copy

import pytest

from pytest_cudafork.isolate.item_names import (
    COLLECTED,
    Finder,
    identity,
    name_of,
    number_namesakes,
    parameters,
    place_of,
)

SOURCE = """
import pytest

def test_plain(): pass

class TestClass:
    def test_method(self): pass

@pytest.mark.parametrize("x", [(1, "a"), (2, "b"), [3]])
def test_params(x): pass
"""


@pytest.fixture
def items(pytester: pytest.Pytester) -> list[pytest.Item]:
    """The tests of a file, as one session has them."""
    return pytester.getitems(SOURCE)


def test_a_test_is_named_by_its_file_and_the_names_below(items: list[pytest.Item]) -> None:
    file = str(items[0].path)
    assert [identity(item) for item in items] == [
        (file, "test_plain"),
        (file, "TestClass", "test_method"),
        (file, "test_params[x0]"),
        (file, "test_params[x1]"),
        (file, "test_params[x2]"),
    ]


BLOCKS = """
import pytest

class Block(pytest.Module):
    def collect(self):
        yield pytest.Function.from_parent(self, name="it", callobj=lambda: None)

class Blocks(pytest.File):
    def collect(self):
        for name in ("one", "two"):
            block = Block.from_parent(self, path=self.path)
            block.name = name
            yield block

def pytest_collect_file(file_path, parent):
    if file_path.suffix == ".blocks":
        return Blocks.from_parent(parent, path=file_path)
"""


def test_modules_in_a_file_are_among_the_names(pytester: pytest.Pytester) -> None:
    """As the blocks of pytest-describe are: else all tests of one name would be the same."""
    pytester.makeconftest(BLOCKS)
    file = pytester.path / "it.blocks"
    file.touch()
    items, _ = pytester.inline_genitems(file)
    assert [identity(item) for item in items] == [
        (str(file), "one", "it"),
        (str(file), "two", "it"),
    ]
    assert [Finder(items).find(*name_of(item)) for item in items] == items


def test_tests_of_one_name_are_found_by_their_number(pytester: pytest.Pytester) -> None:
    first = pytester.getitem("def test_it(): pass", "test_it")
    others = [
        pytest.Function.from_parent(first.parent, name=name, callobj=lambda: None)
        for name in ("test_it", "test_it[1]", "test_it", "test_it[1]")
    ]
    items: list[pytest.Item] = [first, *others]
    number_namesakes([*items, *items])  # plugins repeat a test so
    finder = Finder(items, first=items[1])
    for order in (items, items[::-1]):
        assert [finder.find(*name_of(item)) for item in order] == order
    assert Finder(items[:1]).find(*name_of(items[3])) is first, "there is no other one"


def test_parameters_that_are_no_plain_data_say_nothing(items: list[pytest.Item]) -> None:
    assert [parameters(item) for item in items] == [
        [],
        [],
        [("x", "(1, 'a')")],
        [("x", "(2, 'b')")],
        [],
    ]


def test_a_test_is_found_again_by_what_names_it(items: list[pytest.Item]) -> None:
    finder = Finder(items)
    assert [finder.find(*name_of(item)) for item in items] == items
    assert finder.find([str(items[0].path), "test_other"], []) is None


def test_the_likeliest_test_is_found_without_looking_at_the_others(
    items: list[pytest.Item],
) -> None:
    finder = Finder(items[1:], first=items[0])
    assert finder.find(*name_of(items[0])) is items[0]


def test_ids_in_another_order_are_matched_by_value(items: list[pytest.Item]) -> None:
    names, values, _ = name_of(items[2])
    swapped = [*names[:-1], "test_params[x1]"]
    assert Finder(items).find(swapped, values) is items[2]
    assert Finder(items).find(swapped, [["x", "(9, 'z')"]]) is None
    assert Finder(items).find([names[0], "test_plain"], [["x", "1"]]) is None


def renamed(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return tests as another session has them whose parameters have other ids and no values."""
    others = [copy.copy(item) for item in items]
    for item in others:
        item.name = item.name.replace("[", "[another ")
    return others


def test_a_test_whose_id_is_never_the_same_is_found_by_its_place(items: list[pytest.Item]) -> None:
    items[0].config.stash[COLLECTED] = items
    here = items[2:]
    there = renamed(here)
    finder = Finder([*items[:2], *there])
    found = [finder.find(names, [], place) for names, _, place in map(name_of, here)]
    assert found == there
    assert [place_of(item) for item in items] == [None, None, [0, 3], [1, 3], [2, 3]]


def test_where_there_are_more_or_fewer_no_place_says_anything(items: list[pytest.Item]) -> None:
    items[0].config.stash[COLLECTED] = items
    finder = Finder(renamed(items[2:4]))
    names, _, place = name_of(items[2])
    assert finder.find(names, [], place) is None
    assert finder.find(names, []) is None


def test_a_name_that_is_there_goes_before_a_place(items: list[pytest.Item]) -> None:
    items[0].config.stash[COLLECTED] = [*items[:2], *reversed(items[2:])]
    assert place_of(items[2]) == [2, 3]
    assert place_of(items[0]) is None
    finder = Finder(items)
    assert [finder.find(*name_of(item)) for item in items] == items


def test_those_behind_the_first_one_are_found_in_their_order_without_an_index(
    items: list[pytest.Item],
) -> None:
    finder = Finder(items, first=items[1])
    for item in items[1:]:
        assert finder.find(*name_of(item)) is item
    assert finder._by_name is None
    assert finder.find(*name_of(items[0])) is items[0]
    assert finder.find(["no", "such"], []) is None
