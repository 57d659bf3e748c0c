"""Is CUDA initialized here? The answer for tests, and for users outside pytest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_cudafork.errors import CudaTouchError
from pytest_cudafork.observe.driver.lineage import process_lineage
from pytest_cudafork.observe.driver.probe import CudaState, Verdict, ask_driver, ask_torch, judge

if TYPE_CHECKING:
    from pytest_cudafork.check.watch import Watch
    from pytest_cudafork.observe.observer import Observer


def current_state() -> CudaState:
    """Return the state of CUDA in this process, without initializing anything.

    The first call begins the at-fork record, so call it once before the forks it shall judge.
    """
    lineage = process_lineage()
    return judge(
        ask_driver(),
        ask_torch(),
        poisoned_by=lineage.poisoned_by,
        forked_unwatched=lineage.forked_unwatched,
    )


def state_here(watch: Watch | None) -> CudaState:
    """Return the state of CUDA in this process, as the watch over it knows it if there is one."""
    return current_state() if watch is None else watch.observer.state()


def require_clean(state: CudaState, observer: Observer | None, when: str) -> None:
    """Check that CUDA is not initialized.

    Raises:
        CudaTouchError: it is, or whether it is cannot be known here; the message names the line
            where the session is checked.

    """
    __tracebackhide__ = True
    if state.verdict is Verdict.CLEAN:
        return
    text = f"CUDA is {state.verdict.value} in this process {when}: {state.why}."
    if observer is None:
        text += " Run with --cuda-fork-check to see which line did it."
    else:
        from pytest_cudafork.compat.unpatched import os
        from pytest_cudafork.observe.story.words import touch_lines

        observer.settle()
        touch = observer.history().initializer(os.getpid())
        if touch is not None:
            text = "\n".join([text, "", *touch_lines(touch)])
    raise CudaTouchError(text)
