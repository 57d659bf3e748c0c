"""Stacks in the form that the ledger holds."""

from __future__ import annotations

import gc
import inspect
import json
import subprocess
import sys
import threading
from types import FrameType

import pytest

from pytest_cudafork.observe.base.stacks import (
    MOST_FRAMES,
    frames_of_threads,
    outward,
    stack_of,
)


def test_the_innermost_frame_comes_first_with_its_place_and_flags() -> None:
    def inner() -> FrameType:
        return sys._getframe()

    frame = inner()
    first, second = stack_of(frame)[:2]
    assert first[:2] == (__file__, frame.f_lineno)
    assert first[2].endswith("inner")
    assert first[3] & inspect.CO_OPTIMIZED
    assert second[2].endswith("test_the_innermost_frame_comes_first_with_its_place_and_flags")


def test_a_class_body_has_no_optimized_flag() -> None:
    class Body:
        frame = sys._getframe()

    assert not stack_of(Body.frame)[0][3] & inspect.CO_OPTIMIZED


def test_an_endless_recursion_is_cut_off() -> None:
    def deep(left: int) -> FrameType:
        return deep(left - 1) if left else sys._getframe()

    assert len(stack_of(deep(MOST_FRAMES))) == MOST_FRAMES


def test_no_frame_is_no_stack_and_a_stack_is_plain_data() -> None:
    assert stack_of(None) == []
    stack = stack_of(sys._getframe())
    assert json.loads(json.dumps(stack)) == [list(item) for item in stack]


def test_a_frame_is_followed_by_its_callers_to_the_outermost() -> None:
    frame = sys._getframe()
    found = list(outward(frame))
    assert found[0] is frame
    assert found[1] is frame.f_back
    assert found[-1].f_back is None
    assert list(outward(None)) == []


@pytest.mark.parametrize("collects", [True, False])
def test_each_thread_has_its_frame_and_garbage_is_collected_as_before(
    collects: bool,
) -> None:
    go_on, waits = threading.Event(), threading.Event()

    def work() -> None:
        waits.set()
        go_on.wait()

    thread = threading.Thread(target=work)
    thread.start()
    waits.wait()
    was = gc.isenabled()
    try:
        (gc.enable if collects else gc.disable)()
        frames = frames_of_threads()
        assert gc.isenabled() is collects
    finally:
        (gc.enable if was else gc.disable)()
        go_on.set()
        thread.join()
    assert thread.ident is not None
    assert any(frame.f_code is work.__code__ for frame in outward(frames[thread.ident]))
    assert frames[threading.get_ident()].f_code.co_name == "frames_of_threads"


FINALIZED_MEANWHILE = """
import gc, threading, time
from pytest_cudafork.observe.base.stacks import frames_of_threads

class Cycle:
    def __init__(self):
        self.itself = self

    def __del__(self):
        frames_of_threads()

for _ in range(40):  # their frames and numbers are what is allocated
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
gc.set_threshold(10, 2, 2)
for _ in range(500):
    Cycle()
    frames_of_threads()
print("ended")
"""


def test_a_finalizer_may_ask_for_the_frames_within_the_question() -> None:
    """A process for it: before Python 3.12 it would wait for ever, with the interpreter's lock."""
    command = [sys.executable, "-c", FINALIZED_MEANWHILE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr
