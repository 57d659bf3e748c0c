"""Calls of ``torch.cuda`` that order work in time: streams, events and waiting for them.

The software graph has none of them. A capture refuses them; in a recorded run they do nothing. The
current stream may be asked for in both, as it is for a launch: it is the captured one. Where a test
has stand-ins for streams, these follow what takes part in a capture.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from pytest_cudafork.capture.interface.hidden_frames import of_refusals
from pytest_cudafork.capture.operators.refusal_words import Refusals
from pytest_cudafork.capture.software.own_thread import replace_here
from pytest_cudafork.observe.base.undo import UndoStack

__tracebackhide__ = of_refusals

_WAITS = (("cuda", "synchronize"), ("accelerator", "synchronize"))
_STREAMS = tuple(
    (module, name)
    for module in ("cuda", "accelerator")
    for name in ("Stream", "Event", "ExternalStream", "stream", "current_stream", "set_stream",
                 "default_stream", "StreamContext")
)  # fmt: skip
_CURRENT = ("torch.cuda.current_stream", "torch.accelerator.current_stream")
_SWITCH = ("torch.cuda.stream", "torch.cuda.StreamContext", "torch.cuda.set_stream",
           "torch.accelerator.set_stream")  # fmt: skip


_ASKS = "is_current_stream_capturing"
_KNOWS = "within_capture"
"""What streams have that know of captures."""


class _Stream:
    """Stands for a stream or an event: every method does nothing, and says that work is done."""

    cuda_stream = stream_id = cuda_event = priority = 0

    def is_capturing(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: self.called(name)

    def called(self, name: str) -> Any:
        """Answer a call of a method."""
        return _Stream()

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *args: object) -> None:
        return None


class _Captured(_Stream):
    """Stands for the stream that is captured: it has a handle; ordering work by it is refused."""

    def __init__(self, refuse: Callable[[str], Any], wait: Callable[[str], Any]) -> None:
        self._refuse, self._wait = refuse, wait

    def is_capturing(self) -> bool:
        return True

    def called(self, name: str) -> Any:
        """Refuse it."""
        instead = self._wait if name in ("synchronize", "query") else self._refuse
        return instead(f"{name} of the current stream")


def ignored() -> contextlib.AbstractContextManager[None]:
    """Let the calls of this thread do nothing, for the length of a ``with``."""
    return _replaced(lambda call, *args: None, lambda call, *args: _Stream())


@contextlib.contextmanager
def refused(refusals: Refusals) -> Iterator[None]:
    """Refuse the calls of this thread, for the length of a ``with``."""

    def wait(call: str, *args: Any) -> None:
        refusals.wait(call)

    def stream(call: str, *args: Any) -> Any:
        if call in _CURRENT:
            return captured
        if call in _SWITCH and args and (args[0] is captured or args[0] is None):
            return contextlib.nullcontext(captured)  # it stays the current one
        return refusals.stream(call)

    captured = _Captured(stream, wait)
    with _replaced(wait, stream), UndoStack() as undo:
        undo.set(torch.cuda, _ASKS, lambda: True)
        yield


def followed(mode: Any) -> contextlib.AbstractContextManager[None]:
    """Follow the streams of a capture where those of a test are stand-ins, which know how."""
    own = _stand_in()
    return contextlib.nullcontext() if own is None else own(mode)


def _stand_in() -> Any:
    return getattr(torch.cuda.Stream, _KNOWS, None)


@contextlib.contextmanager
def _replaced(wait: Callable[..., Any], stream: Callable[..., Any]) -> Iterator[None]:
    """Replace what waits, and what makes and orders streams, unless stand-ins do that."""
    with UndoStack() as undo:
        of_streams = [(_STREAMS, stream)] if _stand_in() is None else []
        for names, instead in ((_WAITS, wait), *of_streams):
            for module, name in names:
                where = getattr(torch, module, None)
                if hasattr(where, name):
                    call = functools.partial(_called, instead, f"torch.{module}.{name}")
                    replace_here(undo, where, name, call)
        yield


def _called(
    instead: Callable[..., Any], call: str, original: Any, *args: Any, **kwargs: Any
) -> Any:
    return instead(call, *args)
