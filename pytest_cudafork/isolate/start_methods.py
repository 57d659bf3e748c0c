"""Tests marked ``start_methods``: one for each method, run with it, and what they ran with in fact.

The method is set where the test runs, from its set-up to its teardown: in ``multiprocessing``'s
default context and in the variables that engines look for. What is started under another method all
the same (an engine that goes by its own rules, a context that names its own) is noted in properties
of the report, which JUnit files hold and the terminal's summary counts.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import NamedTuple

import pytest

from pytest_cudafork.compat.unpatched import contextlib
from pytest_cudafork.observe.base.process_starts import follow
from pytest_cudafork.observe.base.stacks import StackItem
from pytest_cudafork.settings import environment, markers

FIXTURE = "start_method"
WANTED = "cudafork_wanted"
"""The property of a report that holds the start method that a test names."""
RAN = "cudafork_ran"
"""The property that holds a method by which it started a process; there may be several."""
RAN_AT = "cudafork_ran_at"
"""The property that holds where it started one by another method than it names."""
_NAMES = (WANTED, RAN, RAN_AT)


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Make one test for each method of the marker; a wrong one is told in the set-up."""
    if not markers.parametrize(metafunc, FIXTURE, lambda marks: marks.start_methods):
        return
    manager = metafunc.config.pluginmanager
    if not manager.has_plugin("cudafork-start-methods"):
        manager.register(StartMethodHooks(), "cudafork-start-methods")


class StartMethodHooks:
    """Sets the method of each test that has one while it runs, and notes what was started."""

    def __init__(self) -> None:
        self._undo = contextlib.ExitStack()
        self._started: dict[str, str] = {}
        """The methods that the test has used, each with the first line that did."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, None, None]:
        """Set the method before any fixture of the test is set up."""
        __tracebackhide__ = True
        method = method_of(item)
        if method:
            self._begin(method)
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Generator[None, None, None]:
        """Take everything back when the last fixture of the test is torn down."""
        __tracebackhide__ = True
        try:
            return (yield)
        finally:
            self._undo.close()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Let each report of the test say what it named, and what was started up to then."""
        method = method_of(item)
        if method:
            others = [pair for pair in item.user_properties if pair[0] not in _NAMES]
            item.user_properties[:] = [*others, *self._properties(method)]
        return (yield)

    def _properties(self, method: str) -> list[tuple[str, object]]:
        ran = [(RAN, each) for each in self._started]
        at = [(RAN_AT, f"{place} by {each}") for each, place in self._started.items()]
        other = [pair for pair, each in zip(at, self._started, strict=True) if each != method]
        return [(WANTED, method), *ran, *other]

    def _begin(self, method: str) -> None:
        import multiprocessing

        self._undo.close()
        self._started.clear()
        before = multiprocessing.get_start_method(allow_none=True)
        self._undo.callback(multiprocessing.set_start_method, before, force=True)
        multiprocessing.set_start_method(method, force=True)
        for name in (environment.VLLM_METHOD, environment.COMMON_METHOD):
            environment.set_variable(self._undo, name, method)
        self._undo.callback(follow(self._note, _nothing))

    def _note(self, method: str, stack: list[StackItem]) -> None:
        from pytest_cudafork.observe.story.touch import frames_from
        from pytest_cudafork.observe.story.words import place_of

        self._started.setdefault(method, place_of(frames_from(stack)))


def _nothing(method: str, stack: list[StackItem]) -> None:
    """Take note of nothing: what the test sets by itself counts when it is used."""


def method_of(item: pytest.Item) -> str:
    """Return the start method for which a test was made; "" for a test without the marker."""
    if item.get_closest_marker("start_methods") is None:
        return ""
    params = getattr(getattr(item, "callspec", None), "params", {})
    return str(params.get(FIXTURE, ""))


class RanOtherwise(NamedTuple):
    """A test that started a process by another method than it names; ``place``: where, and how."""

    wanted: str
    ran: str
    place: str


def ran_otherwise(properties: Iterable[tuple[str, object]]) -> list[RanOtherwise]:
    """Read the properties of a report; an entry for each other method."""
    pairs = [(str(name), str(text)) for name, text in properties]
    wanted = next((text for name, text in pairs if name == WANTED), "")
    places = [text for name, text in pairs if name == RAN_AT]
    return [
        RanOtherwise(wanted, ran, next((at for at in places if at.endswith(f" by {ran}")), ""))
        for name, ran in pairs
        if name == RAN and ran != wanted
    ]
