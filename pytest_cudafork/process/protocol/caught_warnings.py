"""Warnings on their way from a child: how one becomes plain data, and a warning again.

A child packs what it has caught; its parent loads it and shows it at its own file and line. A
warning whose class does not pickle, or is not to be found in the parent, arrives with the name of
its class and its text, and looks the same.
"""

from __future__ import annotations

import sys
import warnings

from pytest_cudafork.compat.unpatched import contextlib, pickle
from pytest_cudafork.process.protocol import exception_parts
from pytest_cudafork.process.protocol.messages import CaughtWarning


def pack(caught: warnings.WarningMessage) -> CaughtWarning:
    """Return the message for one recorded warning."""
    warning = caught.message
    pickled = None
    with contextlib.suppress(Exception):  # then the text has to do
        pickled = exception_parts.dumps(warning)
        pickle.loads(pickled)
    return CaughtWarning(
        pickled=pickled,
        type=f"{caught.category.__module__}.{caught.category.__qualname__}",
        text=str(warning),
        filename=str(caught.filename),
        lineno=int(caught.lineno),
        line=caught.line,
    )


def load(packed: CaughtWarning) -> warnings.WarningMessage:
    """Return a warning that came from a child; it looks the same if it cannot be loaded here."""
    try:
        message = pickle.loads(packed.pickled or b"")
        if not isinstance(message, Warning):
            raise TypeError(f"{message!r} is no warning")
    except Exception:  # its text is what counts
        message = _named_warning(packed.type, packed.text)
    return warnings.WarningMessage(
        message, type(message), packed.filename, packed.lineno, line=packed.line
    )


def _named_warning(name: str, text: str) -> Warning:
    """Return a warning with the class name and the text of one that is somewhere else."""
    module, _, name = name.rpartition(".")
    known = getattr(sys.modules.get(module), name, None)
    base = known if isinstance(known, type) and issubclass(known, Warning) else Warning
    body = {"__module__": module, "__init__": lambda self: None, "__str__": lambda self: text}
    warning: Warning = type(name, (base,), body)()
    warning.args = (text,)  # of which pytest-xdist makes it anew
    return warning
