"""What is in force for a phase of a test, at once or as soon as the phase has imported torch.

A test that should have been looked at, and was not, must not pass: what its set-up raises, the end
of the phase raises, and so it is with the parts of it that wait for a later module, as Triton. The
imports themselves are left alone, as whoever imports torch may catch its errors, and a torch that
has been executed in vain cannot be executed again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from pytest_cudafork.errors import GraphNotJudgedError
from pytest_cudafork.observe.base.after_import import Failed, after_import


@contextlib.contextmanager
def from_torch_on(
    what: str, make: Callable[[Failed], contextlib.AbstractContextManager[object]]
) -> Iterator[None]:
    """Enter what *make* returns once torch is there, and leave it at the end of the ``with``.

    Args:
        what: What is not to be had if that fails, as the beginning of a sentence.
        make: Makes what is entered; it is given what hears of a part of it that could not be set
            up when a later module was imported.

    Raises:
        GraphNotJudgedError: (at the end, if nothing else is raised) It could not be made or
            entered, or a part of it could not be set up.

    """
    with whole(what) as failed, contextlib.ExitStack() as undo:

        def enter(module: object) -> None:
            try:
                undo.enter_context(make(failed))
            except Exception as error:
                failed("", error)

        undo.callback(after_import("torch", enter))
        yield


@contextlib.contextmanager
def whole(what: str) -> Iterator[Failed]:
    """Give what hears of a part that could not be set up when a later module was imported.

    It is given the name of the module, "" for all of it, and the error.

    Args:
        what: What is not to be had then, as the beginning of a sentence.

    Raises:
        GraphNotJudgedError: (at the end, if nothing else is raised) It has heard of one.

    """
    broken: list[tuple[str, Exception]] = []
    yield lambda name, error: broken.append((name, error))
    if broken:
        name, error = broken[0]
        part, of = (", or not fully", f" for {name}") if name else ("", "")
        raise GraphNotJudgedError(
            f"{what}{part}, as setting that up{of} failed: {type(error).__name__}: {error}"
        ) from error
