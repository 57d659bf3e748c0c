"""Triton's interpreter is told once a launch what it is to put into ``triton.language``."""

from __future__ import annotations

import types
from typing import Any

import pytest

from tests.engine.support.triton_interpreter import PatchedOnce


class Scope:
    """What undoes a patch."""

    def __init__(self) -> None:
        self.undone = 0

    def restore(self) -> None:
        self.undone += 1


class Interpreter(types.SimpleNamespace):
    """What is used of ``triton.runtime.interpreter``."""

    def __init__(self) -> None:
        language = types.ModuleType("triton.language")
        core: Any = types.ModuleType("triton.language.core")
        language.core = core  # type: ignore[attr-defined]
        self.patched: list[str] = []
        super().__init__(tl=language, _LangPatchScope=Scope)

    def _patch_lang(self, function: Any) -> Scope:
        self.patched.append(function.__name__)
        return Scope()

    def function(self, name: str, **names: Any) -> Any:
        return types.FunctionType((lambda: None).__code__, names, name)


@pytest.fixture
def interpreter() -> Interpreter:
    return Interpreter()


def test_what_a_kernel_calls_is_not_patched_again_within_its_launch(
    interpreter: Interpreter,
) -> None:
    patch = PatchedOnce(interpreter)
    kernel = interpreter.function("kernel", tl=interpreter.tl)
    helper = interpreter.function("helper", language=interpreter.tl)
    for _ in range(2):
        launch = patch(kernel)
        patch(helper).restore()
        patch(helper)
        assert launch.undone == 0
        launch.restore()
        assert launch.undone == 1
    assert interpreter.patched == ["kernel", "kernel"], "once a launch"


def test_a_function_that_sees_another_part_of_the_language_is(interpreter: Interpreter) -> None:
    patch = PatchedOnce(interpreter)
    launch = patch(interpreter.function("kernel", tl=interpreter.tl))
    library = interpreter.function("sum", core=interpreter.tl.core, tl=interpreter.tl)
    patch(library)
    patch(library)
    launch.restore()
    patch(library)
    assert interpreter.patched == ["kernel", "sum", "sum"]


def test_the_complaint_about_a_function_that_sees_none_of_it_stays(
    interpreter: Interpreter,
) -> None:
    patch = PatchedOnce(interpreter)
    for _ in range(2):
        patch(interpreter.function("stranger", tl=types.ModuleType("triton.language")))
    assert interpreter.patched == ["stranger", "stranger"]
