"""How a child ended, for tests of what is made of it."""

from __future__ import annotations

from typing import Any

from pytest_cudafork.process.supervision import Ending


def ending(exitcode: int = 0, **changes: Any) -> Ending:
    """Return the end of a child that was as it should be, with changes."""
    fields: dict[str, Any] = {
        "timed_out": False,
        "lingered": False,
        "finished": True,
        "malformed": "",
        "stacks": "",
        "seconds": 1.0,
    }
    return Ending(exitcode, **{**fields, **changes})
