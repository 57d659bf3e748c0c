"""A start method is in force from the set-up of a test to the end of its teardown."""

from __future__ import annotations

import multiprocessing
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.isolate.start_methods import StartMethodHooks, method_of, parametrize
from pytest_cudafork.settings import environment
from pytest_cudafork.settings.environment import COMMON_METHOD, VLLM_METHOD

MARK = pytest.mark.start_methods("fork", "spawn").mark


class Made:
    """An item, or a function that is about to become several."""

    def __init__(self, mark: pytest.Mark | None = MARK, **params: str) -> None:
        self.mark = mark
        self.callspec = SimpleNamespace(params=params)
        self.user_properties: list[tuple[str, object]] = [("of the test", 1)]
        self.stash = pytest.Stash()
        self.config = SimpleNamespace(stash=pytest.Stash())

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self.mark if name == "start_methods" else None

    def iter_markers(self, name: str = "") -> list[pytest.Mark]:
        return [] if self.mark is None or name not in ("", self.mark.name) else [self.mark]


def run(hook: Any) -> None:
    """Run a wrapper around nothing."""
    next(hook)
    with pytest.raises(StopIteration):
        hook.send(None)


def item(mark: pytest.Mark | None = MARK, **params: str) -> Any:
    return Made(mark, **params)


@pytest.fixture
def hooks() -> StartMethodHooks:
    return StartMethodHooks()


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_the_method_is_in_force_while_the_test_runs(hooks: StartMethodHooks, method: str) -> None:
    before = multiprocessing.get_start_method(allow_none=True)
    variables = environment.optional(VLLM_METHOD), environment.optional(COMMON_METHOD)
    run(hooks.pytest_runtest_setup(item(start_method=method)))
    try:
        assert multiprocessing.get_start_method() == method
        assert environment.value(VLLM_METHOD) == environment.value(COMMON_METHOD) == method
    finally:
        run(hooks.pytest_runtest_teardown())
    assert multiprocessing.get_start_method(allow_none=True) == before
    after = environment.optional(VLLM_METHOD), environment.optional(COMMON_METHOD)
    assert after == variables


def test_what_was_started_is_in_the_report(hooks: StartMethodHooks) -> None:
    test = item(start_method="fork")
    run(hooks.pytest_runtest_setup(test))
    try:
        for method in ("spawn", "fork", "spawn"):
            context: Any = multiprocessing.get_context(method)
            process = context.Process(target=print)
            process._popen = object()  # it was started already: nothing happens
            with pytest.raises(AssertionError):
                process.start()
        run(hooks.pytest_runtest_makereport(test))
    finally:
        run(hooks.pytest_runtest_teardown())
    run(hooks.pytest_runtest_makereport(test))  # not once more
    line = test_what_was_started_is_in_the_report.__code__.co_firstlineno + 9
    assert test.user_properties[:-1] == [
        ("of the test", 1),
        ("cudafork_wanted", "fork"),
        ("cudafork_ran", "spawn"),
        ("cudafork_ran", "fork"),
    ]
    name, where = test.user_properties[-1]
    assert name == "cudafork_ran_at"
    assert where.endswith(f"test_start_methods.py:{line} by spawn")


def test_what_another_test_started_is_not(hooks: StartMethodHooks) -> None:
    hooks._note("spawn", [("a.py", 1, "f", 3)])
    test = item(start_method="fork")
    run(hooks.pytest_runtest_setup(test))
    run(hooks.pytest_runtest_teardown())
    run(hooks.pytest_runtest_makereport(test))
    assert test.user_properties == [("of the test", 1), ("cudafork_wanted", "fork")]


def test_a_test_without_the_marker_is_left_alone(hooks: StartMethodHooks) -> None:
    before = multiprocessing.get_start_method(allow_none=True)
    test = item(None, start_method="made by its own")
    assert method_of(test) == ""
    run(hooks.pytest_runtest_setup(test))
    assert multiprocessing.get_start_method(allow_none=True) == before
    run(hooks.pytest_runtest_makereport(test))
    run(hooks.pytest_runtest_teardown())
    assert test.user_properties == [("of the test", 1)]


def test_a_test_is_made_of_each_method_and_the_hooks_registered_once(
    pytestconfig: pytest.Config,
) -> None:
    asked: list[Any] = []
    manager = pytest.PytestPluginManager()
    names: list[str] = []
    function: Any = SimpleNamespace(
        definition=Made(),
        fixturenames=names,
        config=SimpleNamespace(pluginmanager=manager),
        parametrize=lambda *args, **kwargs: asked.append((args, kwargs)),
    )
    parametrize(function)
    parametrize(function)
    call = (("start_method", ("fork", "spawn")), {"indirect": True, "ids": ["fork", "spawn"]})
    assert asked == [call, call]
    assert names == ["start_method"]
    assert isinstance(manager.get_plugin("cudafork-start-methods"), StartMethodHooks)
    function.definition = Made(pytest.mark.start_methods("thread").mark)
    parametrize(function)
    assert len(asked) == 2
