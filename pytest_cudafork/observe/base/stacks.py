"""Python stacks in the form that the ledger holds."""

from __future__ import annotations

from types import FrameType

MOST_FRAMES = 400

StackItem = tuple[str, int, str, int]


def stack_of(frame: FrameType | None) -> list[StackItem]:
    """Return ``(filename, line, qualified name, code flags)`` of ``frame`` and all its callers.

    Innermost first, at most ``MOST_FRAMES``; import machinery is kept, because it is what tells a
    module body that is being imported from a script.
    """
    stack: list[StackItem] = []
    while frame is not None and len(stack) < MOST_FRAMES:
        code = frame.f_code
        name = getattr(code, "co_qualname", code.co_name)
        stack.append((code.co_filename, frame.f_lineno or 0, name, code.co_flags))
        frame = frame.f_back
    return stack
