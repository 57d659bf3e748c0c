"""What is in force for a phase of a test, at once or as soon as the phase has imported torch.

A test that should have been looked at, and was not, must not pass: what its set-up raises, the end
of the phase raises. The import itself is left alone, as whoever imports torch may catch its errors,
and a torch that has been executed in vain cannot be executed again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from pytest_cudafork.errors import GraphNotJudgedError
from pytest_cudafork.observe.base.after_import import after_import

__all__ = ["from_torch_on"]


@contextlib.contextmanager
def from_torch_on(
    what: str, make: Callable[[], contextlib.AbstractContextManager[object]]
) -> Iterator[None]:
    """Enter what *make* returns once torch is there, and leave it at the end of the ``with``.

    Args:
        what: What is not to be had if that fails, as the beginning of a sentence.
        make: Makes what is entered.

    Raises:
        GraphNotJudgedError: (at the end, if nothing else is raised) It could not be made or
            entered.

    """
    broken: list[Exception] = []

    def enter(module: object) -> None:
        try:
            undo.enter_context(make())
        except Exception as error:
            broken.append(error)

    with contextlib.ExitStack() as undo:
        undo.callback(after_import("torch", enter))
        yield
    if broken:
        why = f"{type(broken[0]).__name__}: {broken[0]}"
        raise GraphNotJudgedError(f"{what}, as setting that up failed: {why}") from broken[0]
