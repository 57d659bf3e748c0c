"""What is read of a core's stderr while the core is still writing."""

from __future__ import annotations

import os

import pytest

from sample_engine.process.stderr_log import StderrLog, are_whole

ABOVE = 'Current thread 0x1 (most recent call first):\n  File "a.py", line 1 in work\n'
LOOP = '  File "core.py", line 2 in run_core\n'
BELOW = '  File "process.py", line 3 in run\n'


@pytest.mark.parametrize("below", [BELOW[:length] for length in (0, 7, 8, 20, len(BELOW))])
def test_stacks_end_with_the_loop_wherever_the_writer_is(below: str) -> None:
    """The writer puts "  File " there at once, and the rest of a frame in pieces."""
    log = StderrLog()
    try:
        os.write(log.fileno(), (ABOVE + LOOP + below).encode())
        assert are_whole(log.written_since(0))
        assert log.since(0) == (ABOVE + LOOP).rstrip()
    finally:
        log.close()


def test_what_follows_the_frames_below_the_loop_is_kept() -> None:
    log = StderrLog()
    try:
        os.write(log.fileno(), (LOOP + BELOW + "\nout of memory\n").encode())
        assert log.since(0) == f"{LOOP}\nout of memory"
    finally:
        log.close()
