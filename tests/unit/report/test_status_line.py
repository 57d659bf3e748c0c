"""What a check is at, on a terminal: shown after a while, wiped out, and not in a log."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_cudafork.capture.interface.progress import now_at
from pytest_cudafork.report import status_line
from pytest_cudafork.report.status_line import StatusLine, terminal_of

TEST = """
from pytest_cudafork.capture.interface.progress import now_at
from pytest_cudafork.report import status_line

status_line.AFTER_SECONDS = 0.0

def test_it():
    now_at("round 1: d\\xe9j\\xe0\\n")
    now_at("round 2")
"""


class Terminal:
    """A pseudo-terminal; ``said`` is what was written to it so far."""

    def __init__(self) -> None:
        self.master, self.fd = os.openpty()

    def said(self) -> str:
        os.write(self.fd, b"\0")  # so that there is something to read
        found = b""
        while not found.endswith(b"\0"):
            found += os.read(self.master, 4096)
        return found[:-1].decode()

    def close(self) -> None:
        os.close(self.master)
        os.close(self.fd)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    yield made
    made.close()


class Config:
    """As much of a configuration as is asked."""

    def __init__(self, *, markup: bool = True, reporter: bool = True, **options: Any) -> None:
        self.option = SimpleNamespace(**{"capture": "fd", "verbose": 0, **options})
        self.pluginmanager = SimpleNamespace(has_plugin=lambda name: reporter)
        self._markup = markup
        self.undo: list[Any] = []

    def get_terminal_writer(self) -> Any:
        return SimpleNamespace(hasmarkup=self._markup)

    def add_cleanup(self, call: Any) -> None:
        self.undo.append(call)


def asked(config: Config) -> pytest.Config:
    return cast("pytest.Config", config)


def stand_on(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let standard output be the terminal; in the test itself, as pytest sets it in each phase."""
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(fileno=lambda: terminal.fd))


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, True),
        ({"capture": "sys", "verbose": 2}, True),
        ({"capture": "no"}, False),
        ({"capture": "tee-sys"}, False),
        ({"verbose": -1}, False),
        ({"usepdb": True}, False),
        ({"trace": True}, False),
        ({"markup": False}, False),
        ({"reporter": False}, False),
    ],
)
def test_only_where_pytest_alone_writes_to_the_terminal(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], wanted: bool
) -> None:
    stand_on(terminal, monkeypatch)
    assert terminal_of(asked(Config(**options))) == (terminal.fd if wanted else None)


def test_not_where_standard_output_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(os.devnull) as file:
        monkeypatch.setattr(sys, "stdout", file)
        assert terminal_of(asked(Config())) is None
    assert terminal_of(asked(Config())) is None, "it is closed"
    monkeypatch.setattr(sys, "stdout", None)
    assert terminal_of(asked(Config())) is None


def test_it_is_shown_after_a_while_and_wiped_out_once(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_on(terminal, monkeypatch)
    now = [100.0]
    monkeypatch.setattr("pytest_cudafork.report.status_line.time.monotonic", lambda: now[0])
    config = Config()
    line = StatusLine()
    line.pytest_sessionstart(cast("pytest.Session", SimpleNamespace(config=config)))
    protocol = line.pytest_runtest_protocol()
    next(protocol)
    now_at("too early")
    now[0] += status_line.AFTER_SECONDS
    now_at("round 1")
    line.pytest_runtest_makereport()
    line.pytest_runtest_makereport()
    now_at("round \x1b 2")
    with pytest.raises(StopIteration):
        next(protocol)
    assert terminal.said() == (
        "\x1b7\x1b[?7l  round 1\x1b[K\x1b[?7h\x1b8"
        "\x1b[K"
        "\x1b7\x1b[?7l  round ? 2\x1b[K\x1b[?7h\x1b8"
        "\x1b[K"
    )
    monkeypatch.setattr("pytest_cudafork.report.status_line.os.getpid", lambda: -1)
    now_at("in a process that was forked")
    line.wipe()
    for undo in config.undo:
        undo()
    now_at("nobody looks any more")
    assert terminal.said() == ""


def test_a_terminal_that_is_gone_is_no_error(terminal: Terminal) -> None:
    line = StatusLine()  # which has none yet
    line.show("round 1")
    line.wipe()
    assert terminal.said() == ""


@pytest.mark.slow
def test_a_session_shows_it_on_a_terminal_and_not_in_a_log(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TEST)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "pytest_cudafork.plugin",
        "-p",
        "no:cacheprovider",
    ]
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    for name in ("NO_COLOR", "FORCE_COLOR", "PY_COLORS", "PYTEST_ADDOPTS"):
        env.pop(name, None)
    master, fd = os.openpty()
    with subprocess.Popen(command, stdout=fd, stderr=fd, stdin=subprocess.DEVNULL, env=env) as done:
        os.close(fd)
        said = b""
        try:
            while part := os.read(master, 4096):
                said += part
        except OSError:  # how Linux tells the end
            pass
    os.close(master)
    assert done.returncode == 0, said
    text = said.decode()
    shown = "\x1b7\x1b[?7l  round 1: d\\xe9j\\xe0?\x1b[K\x1b[?7h\x1b8\x1b7\x1b[?7l  round 2\x1b[K"
    assert shown in text
    assert text.index("test_a_session_shows") < text.index(shown) < text.index("1 passed")
    log = subprocess.run(command, capture_output=True, env=env, text=True, check=True)
    assert "round" not in log.stdout + log.stderr
    assert "1 passed" in log.stdout
