"""How a test waits for what another process or thread has done, however long that takes.

It imports nothing heavy: what travels to a child may need it there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def wait_until(condition: Callable[[], object], what: str = "it", seconds: float = 120.0) -> None:
    """Wait until something is true; ``what`` is named where that takes too long."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"waited {seconds:g} s in vain for {what}"
        time.sleep(0.01)


class Sign:
    """A file by which a child tells that it has come to a place."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def give(self, text: object = "") -> None:
        """Tell, in the child; the file is whole as soon as it is there."""
        part = self.path.with_name(f"{self.path.name}.part")
        part.write_text(str(text))
        part.rename(self.path)

    def is_given(self) -> bool:
        """Whether it was told."""
        return self.path.exists()
