"""A method of a ``unittest.TestCase`` that is called in a child: its subtests and its cleanups.

The object whose method it is hears of both, and the child has a copy of that, which ends with it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from pytest_cudafork.compat import standard_library
from pytest_cudafork.compat.unpatched import contextlib
from pytest_cudafork.counted import count_of


def call_telling(call: Callable[[], Any], name: str, case: object, *, cleans_up: bool) -> Any:
    """Call in a child, and let the end of that tell what the object would keep to itself.

    Subtests that fail, or are skipped, do not end the method, as ever. Cleanups that a test itself
    adds run when it has ended; a helper cannot know for what it adds them, and they are left.

    Args:
        call: What calls the function and returns its result.
        name: The name of the function that is called.
        case: Its first argument; nothing is done for what is no ``unittest.TestCase``.
        cleans_up: Whether cleanups can run here; those of coroutines would need their event loop.

    Raises:
        AssertionError: Subtests have failed.
        unittest.SkipTest: None has failed, and some were skipped.

    """
    if not standard_library.is_unittest(type(case)):
        return call()
    subtests = _Subtests(f"{type(case).__name__}.{name}")
    cleanups = contextlib.ExitStack()

    def add_cleanup(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
        cleanups.callback(function, *args, **kwargs)

    heard: dict[str, Any] = {"subTest": subtests.one}
    if cleans_up and standard_library.test_of_unittest(case) == name:
        heard["addCleanup"] = add_cleanup
    result, ended = None, None
    with _in_place(case, heard):
        try:
            with cleanups:
                result = call()
        except Exception as error:
            ended = error
    subtests.check(ended)
    return result


class _Subtests:
    """Collects what subtests of one method raise."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._open: list[str] = []
        self._failed: list[str] = []
        self._skipped: list[str] = []

    @contextlib.contextmanager
    def one(self, msg: object = None, **params: Any) -> Iterator[None]:
        """Run one; it stands in for ``TestCase.subTest``."""
        from pytest_cudafork.call.in_child import traceback_text

        words = [f"[{msg}]"] if msg is not None else []
        if params:
            words.append(f"({', '.join(f'{key}={value!r}' for key, value in params.items())})")
        self._open.append(" ".join(words) or "(<subtest>)")
        told = ", in ".join(reversed(self._open))
        try:
            yield
        except Exception as error:
            if isinstance(error, sys.modules["unittest"].SkipTest):
                self._skipped.append(f"{told}: {error}")
            else:
                self._failed.append(f"{told}\n{traceback_text(error)}")
        finally:
            self._open.pop()

    def check(self, ended: Exception | None) -> None:
        """Raise what became of them; what the method raised is the cause of that, or is raised."""
        if self._failed:
            words = f"{count_of(len(self._failed), 'subtest')} of {self._name} failed:"
            raise AssertionError("\n\n".join([words, *self._failed])) from ended
        if ended is not None:
            raise ended
        if self._skipped:
            raise sys.modules["unittest"].SkipTest("; ".join(self._skipped))


@contextlib.contextmanager
def _in_place(thing: object, names: dict[str, Any]) -> Iterator[None]:
    """Let an object have attributes of its own for a while."""
    former = {name: vars(thing)[name] for name in names if name in vars(thing)}
    vars(thing).update(names)
    try:
        yield
    finally:
        for name in names:
            vars(thing).pop(name, None)
        vars(thing).update(former)
