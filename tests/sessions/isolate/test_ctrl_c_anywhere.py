"""Ctrl-C at places all over a session with isolated tests: the parent's part of each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import signal_at
from tests.support.death import noted
from tests.support.isolation import is_gone
from tests.support.sessions import TIME_LIMIT, run_session

CONFTEST = (
    Path(signal_at.__file__).read_text(encoding="utf-8")
    + """
import os
import pytest
from pytest_cudafork.isolate.session import children
from pytest_cudafork.process import server_process

# Who waits for a process that does not end waits for longer than the session may take.
children.GROUP_END_SECONDS = server_process.CLOSE_SECONDS = {forever!r}
server_process._ANSWER_SECONDS = {forever!r}

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtestloop(session):
    try:
        os.close(os.open("MAIN", os.O_CREAT | os.O_EXCL))
    except FileExistsError:  # the server's session, or that of a fresh interpreter
        return (yield)
    with SignalAt({number}, signal.SIGINT) as at:
        result = yield
    print("sent", at.sent)
    return result

@pytest.fixture(autouse=True)
def _note():
    with open({notes!r}, "a") as file:
        file.write(f"{{os.getpid()}}\\n")
"""
)
BODY = """
def test_1(): print("one")
def test_2(): pass
def test_3(): assert 0
def test_4(): pass
"""
FOREVER = 4.0 * TIME_LIMIT
"""Seconds; a session that has to wait for them fails its test."""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "forkserver"])
@pytest.mark.parametrize("number", [*range(40, 4_000, 660), *range(4_000, 12_000, 1_600)])
def test_it_ends_the_session_soon_and_leaves_nothing(
    pytester: pytest.Pytester, method: str, number: int
) -> None:
    notes = str(pytester.path / "notes")
    pytester.makeconftest(CONFTEST.format(number=number, notes=notes, forever=FOREVER))
    pytester.makepyfile(BODY)
    result = run_session(pytester, "-s", f"--cuda-fork-isolate={method}")
    text = result.stdout.str() + result.stderr.str()
    assert "INTERNALERROR" not in text
    assert [pid for pid in noted(pytester) if not is_gone(pid)] == []
    if "sent False" in text:  # the session was over before
        result.assert_outcomes(passed=3, failed=1)
    elif "Exception ignored in" not in text:  # by Python itself, which loses the signal
        assert result.ret == pytest.ExitCode.INTERRUPTED
        # with a note of Python 3.12's behind it, where a class was just being made
        assert "! KeyboardInterrupt" in text
