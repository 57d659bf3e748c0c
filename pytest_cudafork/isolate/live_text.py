"""What a test in a child writes to the terminal at once: it goes to the parent's terminal.

Used in the child (``ChildTerminal``) and in the parent (``show``).

``--setup-show``, live logs and plugins write while a test runs. The parent writes what they wrote
between its own words, and knows where on the line it stands. With ``-s`` a test's own output goes
to the terminal directly; then the child waits after each message until the parent has shown it, for
the order would be lost otherwise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_cudafork.compat import pytest_internals
from pytest_cudafork.compat.unpatched import contextlib, io, os
from pytest_cudafork.process.protocol import messages

Tell = Callable[[messages.Message], bool]
"""Sends a message; False where there is nobody to tell."""
Ask = Callable[[], "Mapping[str, Any] | None"]
"""Says where the terminal stands."""

_REPORTER = "terminalreporter"
_DIRECT = ("no", "tee-sys")
"""Values of ``--capture`` with which a test writes to the terminal itself."""


class ForwardedFile(io.TextIOBase):
    """The file behind a child's terminal."""

    def __init__(self, write: Callable[[str], None], real: Any) -> None:
        super().__init__()
        self._write = write
        self._real = real

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The real terminal's."""
        return getattr(self._real, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        """Tell the text."""
        if text:
            self._write(text)
        return len(text)

    def isatty(self) -> bool:
        """Whether the real terminal is one."""
        return bool(self._real is not None and self._real.isatty())


class StandIn:
    """A terminal reporter for plugins that look for one; pytest finds no hooks in it."""

    def __init__(self, reporter: Any) -> None:
        self.__dict__["_reporter"] = reporter

    def __getattr__(self, name: str) -> Any:
        """Return the attribute of the reporter behind this; hooks have names of their own."""
        return getattr(self.__dict__["_reporter"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set it there."""
        setattr(self.__dict__["_reporter"], name, value)


class ChildTerminal:
    """The terminal of one child.

    Args:
        config: The configuration of the child's session.
        tell: Sends a message.
        wait: Waits until the parent has shown what was sent before.

    """

    def __init__(self, config: pytest.Config, tell: Tell, wait: Callable[[], None]) -> None:
        self._tell = tell
        self._wait = wait
        self._reporter: Any = config.pluginmanager.get_plugin(_REPORTER)
        self._real: Any = None
        self._ask: Ask | None = None
        self.direct = is_direct(config)
        """Whether tests write to the terminal themselves, so that the order has to be kept."""

    def take_over(self) -> None:
        """Begin to forward, in the child."""
        self._real = pytest_internals.redirect_writer(
            pytest_internals.writer_of(self._reporter),
            lambda real: ForwardedFile(self._forward, real),
        )

    def begin(self, position: Mapping[str, Any] | None, ask: Ask | None = None) -> None:
        """Take over where the parent's terminal stands (see ``position_of``) before a test.

        ``ask`` says it, and is called where it matters first.
        """
        self._ask = ask
        self._stand_at(position)

    def _stand_at(self, position: Mapping[str, Any] | None) -> None:
        if self._reporter is not None and position is not None:
            self._reporter.currentfspath = _unpack(position["at"])
            writer = pytest_internals.writer_of(self._reporter)
            pytest_internals.set_current_line(writer, position["line"])

    def settle(self) -> None:
        """After a message: let the parent show it before this process writes on."""
        if self.direct:
            self._wait()

    def flush(self) -> None:
        """Before a message: bring out what was written directly."""
        if self.direct:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):  # closed, replaced or broken by the test
                    stream.flush()

    def _forward(self, text: str) -> None:
        self.flush()
        if self._ask is not None:
            ask, self._ask = self._ask, None
            self._stand_at(ask())
        place = _place_of(self._reporter)
        if self._tell(messages.TerminalText(text, place, self.direct)):
            self.settle()
        else:  # a process that the test has forked, or between two tests
            self._real.write(text)
            self._real.flush()


def is_direct(config: pytest.Config) -> bool:
    """Whether tests write to the terminal themselves."""
    return config.getoption("capture", "no") in _DIRECT  # there is no option with -p no:capture


def stand_in(config: pytest.Config, real: Mapping[str, Any]) -> None:
    """Give a session that shows nothing a terminal reporter, in ``pytest_configure``.

    Args:
        config: Its plugin ``terminal`` must not be there; the options of that must.
        real: What ``terminal_of`` returned in the parent.

    """
    reporter = pytest_internals.make_reporter(
        config, io.StringIO(), markup=bool(real["markup"]), width=int(real["width"])
    )
    config.pluginmanager.register(StandIn(reporter), _REPORTER)


def terminal_of(config: pytest.Config) -> dict[str, Any] | None:
    """Return what a child needs to know of this process's terminal; None if there is none."""
    reporter: Any = config.pluginmanager.get_plugin(_REPORTER)
    writer = pytest_internals.writer_of(reporter)
    if writer is None:
        return None
    return {"markup": bool(writer.hasmarkup), "width": int(writer.fullwidth)}


def position_of(config: pytest.Config) -> dict[str, Any] | None:
    """Return where on its line this process's terminal stands, as plain data."""
    reporter: Any = config.pluginmanager.get_plugin(_REPORTER)
    line = pytest_internals.current_line(pytest_internals.writer_of(reporter))
    return None if line is None else {"at": _place_of(reporter), "line": line}


def show(config: pytest.Config, message: messages.TerminalText) -> None:
    """Write what a child wrote, in the parent.

    Raises:
        TypeError: What the text stands after is nothing that pytest notes.

    """
    reporter: Any = config.pluginmanager.get_plugin(_REPORTER)
    place = _unpack(message.at)
    writer = pytest_internals.writer_of(reporter)
    if writer is not None:
        writer.write(message.text, flush=True)
        reporter.currentfspath = place


def flush(config: pytest.Config) -> None:
    """Bring out what the parent's terminal has been told so far."""
    writer = pytest_internals.writer_of(config.pluginmanager.get_plugin(_REPORTER))
    if writer is not None:
        writer.flush()


def _place_of(reporter: Any) -> Any:
    """Return pytest's note of what the line began with, as plain data; another's has none."""
    place = getattr(reporter, "currentfspath", None)
    return [str(place)] if isinstance(place, os.PathLike) else place


def _unpack(place: Any) -> Any:
    if isinstance(place, list):
        return Path(*place)
    if place is None or isinstance(place, str | int):
        return place
    raise TypeError(f"the place is a {type(place).__name__}")
