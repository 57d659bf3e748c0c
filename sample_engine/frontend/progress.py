"""Progress bars on stderr: of requests that are generated, of graphs that are captured."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

__all__ = ["Progress", "progress_bar", "step_bar"]

# A batch that is done sooner shows no bar, unless it is asked for.
_DELAY_SECONDS = 1.0


class Progress(Protocol):
    """Where to tell how far it is."""

    def __call__(self, finished: int, tokens: int) -> None:
        """So many requests have finished and so many tokens were generated, in all."""


@contextlib.contextmanager
def progress_bar(total: int, wished: bool | None) -> Iterator[Progress]:
    """Show a bar on stderr for ``total`` requests while the block runs.

    ``None``: if stderr is a terminal and it takes longer than a second.
    """
    if wished is False or (wished is None and not _is_terminal()):
        yield _silent
        return
    bar = _bar(total, 0.0 if wished else _DELAY_SECONDS, "generating", "request")
    began = time.monotonic()

    def tell(finished: int, tokens: int) -> None:
        seconds = max(time.monotonic() - began, 1e-9)
        bar.set_postfix_str(f"{tokens / seconds:.0f} tokens/s", refresh=False)
        bar.update(finished - bar.n)

    try:
        yield tell
    finally:
        bar.close()


@contextlib.contextmanager
def step_bar(
    total: int, wished: bool | None, desc: str, unit: str
) -> Iterator[Callable[[int], None]]:
    """Show a bar for work of ``total`` steps; it is told how many are done. Else as above."""
    if wished is False or (wished is None and not _is_terminal()):
        yield lambda done: None
        return
    bar = _bar(total, 0.0 if wished else _DELAY_SECONDS, desc, unit)

    def tell(done: int) -> None:
        bar.update(done - bar.n)

    try:
        yield tell
    finally:
        bar.close()


def _silent(finished: int, tokens: int) -> None:
    """Show nothing."""


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False


def _bar(total: int, delay: float, desc: str, unit: str) -> Any:
    from tqdm import tqdm  # type: ignore[import-untyped, unused-ignore]

    class Bar(tqdm):  # type: ignore[type-arg, misc, unused-ignore]
        # tqdm's monitor is a thread that stays, and a process with threads should not fork.
        monitor_interval = 0

    return Bar(total=total, delay=delay, desc=desc, unit=unit, file=sys.stderr)
