"""Warnings of what no test's report can tell, as the death of a server between two tests."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from pytest_cudafork.process.descendants import process_state


def loud_warning(warning: Warning) -> None:
    """Warn of what no test's report can tell.

    It is shown even where warnings are errors: here it would end the session.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn(warning, stacklevel=3)


def warn_of_survivors(pids: list[int]) -> None:
    """Tell of processes that a test has started and that could not be ended, if there are any."""
    if pids:
        names = ", ".join(f"{pid} ({process_state.program_of(pid)})" for pid in pids)
        text = f"what a test has started could not be ended: {names}. It hangs in the kernel, or "
        loud_warning(RuntimeWarning(f"{text}belongs to another user."))


def end_loudly(end: Callable[[], list[int]]) -> bool:
    """Call what ends processes that tests have left, and warn of those that it returns.

    It takes a descriptor to look for them, and tests may have left none: that is warned of, too.

    Returns:
        Whether they could be looked for.

    """
    try:
        warn_of_survivors(end())
    except OSError as error:
        text = f"processes that a test has left could not be looked for: {error}"
        loud_warning(RuntimeWarning(text))
        return False
    return True
