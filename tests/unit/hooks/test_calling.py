"""Each plugin is called by itself, and what one raises is told with its line."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from pytest_cudafork.hooks.calling import HookFailure, call_each, failure_of, has_hook

NAME = "pytest_cudafork_isolate"


def plugin(body: str, name: str = "theirs") -> ModuleType:
    """Return a plugin with the hook, as if it were a file of that name."""
    module = ModuleType(name)
    module.__file__ = f"/p/{name}.py"
    source = f"def {NAME}(item):\n    {body}\n"
    exec(compile(source, module.__file__, "exec"), {"pytest": pytest}, vars(module))
    return module


def called(pytester: pytest.Pytester, *plugins: ModuleType) -> list[Any]:
    """Return what came of calling the hook of these plugins."""
    config = pytester.parseconfigure()
    for each in plugins:
        config.pluginmanager.register(each)
    assert has_hook(config, NAME) == bool(plugins)
    return list(call_each(config, NAME, {"item": None}))


def test_nobody_is_called_where_nobody_has_the_hook(pytester: pytest.Pytester) -> None:
    assert called(pytester) == []


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise ValueError('oops')", "ValueError: oops"),
        ("pytest.fail('not so')", "Failed: not so"),
        ("pytest.skip('not here')", "Skipped: not here"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("raise BaseException('odd')", "BaseException: odd"),
    ],
)
def test_what_one_raises_keeps_no_other_from_being_called(
    pytester: pytest.Pytester, body: str, words: str
) -> None:
    found = called(pytester, plugin("return 'fork'", "first"), plugin(body, "second"))
    (nothing, failure), (answer, no_failure) = found
    assert (nothing, answer, no_failure) == (None, "fork", None)
    assert failure.where == "/p/second.py:2"
    assert failure.words.endswith(words)
    assert failure.line() == f"/p/second.py:2: {NAME} raised {failure.words}"


def test_an_exit_and_an_interrupt_pass(pytester: pytest.Pytester) -> None:
    with pytest.raises(pytest.exit.Exception):
        called(pytester, plugin("pytest.exit('enough')"))
    with pytest.raises(KeyboardInterrupt):
        called(pytester, plugin("raise KeyboardInterrupt", "other"))


def test_the_line_is_the_plugins_own_and_not_of_what_it_called() -> None:
    module = plugin("int('x' * item)")
    with pytest.raises(ValueError, match="int") as caught:
        vars(module)[NAME](3)
    assert failure_of("h", module, caught.value).where == "/p/theirs.py:2"
    assert failure_of("h", "a plugin", ValueError("v")) == HookFailure(
        "h", "a plugin", "ValueError: v"
    )


@pytest.mark.parametrize(
    ("start", "body", "kind"),
    [
        ("def", "yield 'fork'", "a generator, because it has a yield"),
        ("async def", "return 'fork'", "a coroutine, because it is async"),
        ("async def", "yield 'fork'", "an asynchronous generator"),
    ],
)
@pytest.mark.parametrize("name", [NAME, "pytest_cudafork_touch"])
@pytest.mark.filterwarnings("error")
def test_a_hook_of_which_nothing_ran_has_failed(
    pytester: pytest.Pytester, name: str, start: str, body: str, kind: str
) -> None:
    module = ModuleType("theirs")
    source = f"\n{start} {name}():\n    {body}\n"
    exec(compile(source, "/p/theirs.py", "exec"), vars(module))
    config = pytester.parseconfigure()
    config.pluginmanager.register(module)
    arguments = {"item": None} if name == NAME else {"config": config, "touch": None, "nodeid": ""}
    ((answer, failure),) = call_each(config, name, arguments)
    assert answer is None
    assert failure is not None
    assert failure.line() == f"/p/theirs.py:2: {name} returned {kind}; nothing of it ran"
    assert not failure.raised
