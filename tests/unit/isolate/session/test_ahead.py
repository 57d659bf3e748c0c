"""Tests of which tests a process may go on to by itself."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_cudafork.isolate.session import ahead
from pytest_cudafork.settings.markers import CHILD_ENV
from tests.unit.isolate.session import items_of

SOURCE = "import pytest\n@pytest.mark.parametrize('i', range({many}))\ndef test(i): pass\n"


def after(items: list[pytest.Item], place: int, goes_with: Any = None) -> list[int | None]:
    """Which are known to follow the one behind that at this place, by their places."""
    goes_with = goes_with or (lambda one, other: True)
    found = ahead.after_next(items[place], items[place + 1], place, goes_with)
    return [None if one is None else items.index(one) for one in found]


def test_all_of_a_group_are_known_up_to_as_many_as_an_order_names(
    pytester: pytest.Pytester,
) -> None:
    items = items_of(pytester, SOURCE.format(many=70))
    assert after(items, 0) == list(range(2, 64))
    assert after(items, 5) == list(range(7, 69))
    assert after(items, 6) == [*range(8, 70), None]
    assert after(items, 68) == [None]
    group = {items[number] for number in range(3)}
    assert after(items, 0, lambda one, other: other in group) == [2, None]
    assert after(items, 1, lambda one, other: other in group) == [None]


def test_nothing_is_known_where_another_test_comes_next(pytester: pytest.Pytester) -> None:
    items = items_of(pytester, SOURCE.format(many=5))
    assert ahead.after_next(items[0], items[2], 0, lambda *_: True) == ()
    assert ahead.after_next(items[0], items[1], None, lambda *_: True) == ()
    assert ahead.after_next(items[0], items[1], 1, lambda *_: True) == ()


@pytest.mark.parametrize(
    ("args", "expected"), [((), True), (("-s",), False), (("--capture=tee-sys",), False)]
)
def test_output_that_goes_to_the_terminal_is_waited_for(
    pytester: pytest.Pytester, args: tuple[str, ...], expected: bool
) -> None:
    items = items_of(pytester, SOURCE.format(many=3), *args)
    assert ahead.may_work_ahead(items[0]) is expected


@pytest.mark.parametrize("hook", ahead._HOOKS)
def test_a_hook_of_the_user_has_a_say(pytester: pytest.Pytester, hook: str) -> None:
    items = items_of(pytester, SOURCE.format(many=3))
    assert ahead.may_work_ahead(items[0])
    plugin = type("Plugin", (), {hook: lambda self: None})()
    items[0].config.pluginmanager.register(plugin)
    assert not ahead.may_work_ahead(items[0])


def test_tests_with_gpus_or_variables_of_their_own_and_those_of_xdist_are_asked_for(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    # of the fork server that the session starts for the test with a GPU: it has the plugin by -p
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    items = items_of(pytester, SOURCE.format(many=3) + "@pytest.mark.gpus(1)\ndef test_g(): pass\n")
    assert not ahead.may_work_ahead(items[-1])
    items[0].stash[CHILD_ENV] = {"A": "1"}
    assert not ahead.may_work_ahead(items[0])
    assert ahead.may_work_ahead(items[1])
    items[1].config.workerinput = {}  # type: ignore[attr-defined]
    assert not ahead.may_work_ahead(items[1])
