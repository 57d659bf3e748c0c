"""Stands in for a native library: its functions, as ctypes shows them, without C."""

from __future__ import annotations

from typing import Any


class Function:
    """A function of the library; its types may be set, what it was called with is kept."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.calls: list[tuple[Any, ...]] = []
        self.restype: Any = None
        self.argtypes: Any = None

    def __call__(self, *args: Any) -> Any:
        """Note the call and answer."""
        self.calls.append(args)
        return self.answer


class Library:
    """The injection, or with faces the phantom."""

    def __init__(
        self, *, phantom: bool = True, state: int = 0, armed: int = 0, hooked: int = 5
    ) -> None:
        self.cudafork_state = Function(state)
        self.cudafork_touch_count = Function(3)
        self.cudafork_unwritten = Function(0)
        self.cudafork_arm = Function(armed)
        self.cudafork_remember = Function(None)
        if phantom:
            self.cudafork_set_face = Function(0)
            self.cudafork_get_face = Function(b"sm_90")
            self.cudafork_reset = Function(None)
            self.cudafork_hook = Function(hooked)
            self.cudafork_unhook = Function(0)
