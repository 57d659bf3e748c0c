"""Tests of the parts of isolation that need no child: words, frames and the choice of a method."""

from __future__ import annotations

import contextlib
import math
import signal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cudafork.isolate.policy import IsolationConfig, Method, ProcessState, choose
from pytest_cudafork.process import exit_status
from pytest_cudafork.process.protocol import frames
from pytest_cudafork.settings.markers import Marks

CLEAN = ProcessState()
INITIALIZED = ProcessState(cuda="initialized")
POISONED = ProcessState(cuda="poisoned")
BLIND = ProcessState(cuda="not observable")
THREADED = ProcessState(threads=2)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exited with status 0"),
        (3, "exited with status 3"),
        (139, "exited with status 139 (a shell's way to say SIGSEGV)"),
        (255, "exited with status 255"),
        (-signal.SIGSEGV, "was killed by SIGSEGV (exit status -11)"),
        (-signal.SIGRTMIN - 3, f"was killed by SIGRTMIN+3 (exit status {-signal.SIGRTMIN - 3})"),
        (None, "ended with an unknown status"),
    ],
)
def test_an_exit_code_is_told_in_words(code: int | None, words: str) -> None:
    assert exit_status.describe(code) == words


def test_sigkill_hints_at_the_memory() -> None:
    assert "out of memory?" in exit_status.describe(-signal.SIGKILL)
    assert "memory" not in exit_status.describe(-signal.SIGSEGV)


@given(st.integers(min_value=-300, max_value=300))
def test_every_exit_code_has_words(code: int) -> None:
    assert str(code) in exit_status.describe(code)
    assert bool(exit_status.signal_name(code)) == (code < 0)


def test_stacks_are_shortened_to_the_frames_of_the_test() -> None:
    stacks = (
        "Fatal Python error: Aborted\n\n"
        'Thread 0x1 (most recent call first):\n  File "w.py", line 1 in work\n\n'
        'Current thread 0x2 (most recent call first):\n  File "t.py", line 2 in test_x\n'
        '  File "_pytest/python.py", line 3 in pytest_pyfunc_call\n  File "m.py", line 4 in main'
    )
    assert exit_status.shorten(stacks) == (
        "Fatal Python error: Aborted\n\n"
        'Thread 0x1 (most recent call first):\n  File "w.py", line 1 in work\n\n'
        'Current thread 0x2 (most recent call first):\n  File "t.py", line 2 in test_x\n'
        "  ... 2 frames of pytest and its start"
    )


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.lists(st.dictionaries(st.text(), PLAIN), max_size=4), st.integers(1, 40))
def test_messages_arrive_whatever_the_stream_is_cut_into(
    bodies: list[dict[str, Any]], size: int
) -> None:
    messages = [{**body, "kind": "report"} for body in bodies]
    stream = b"".join(frames.encode(message) for message in messages)
    decoder = frames.Decoder()
    arrived: list[frames.Plain] = []
    for start in range(0, len(stream), size):
        arrived += decoder.feed(stream[start : start + size])
    assert arrived == messages
    assert decoder.pending == 0


@given(st.binary(min_size=12))
def test_garbage_is_refused_or_waits_for_more_but_is_never_a_message(junk: bytes) -> None:
    decoder = frames.Decoder()
    messages = []
    with contextlib.suppress(frames.FrameError):
        messages += list(decoder.feed(junk))
    assert messages == []


def test_a_function_is_no_plain_data() -> None:
    with pytest.raises(TypeError, match="builtin_function"):
        frames.encode({"kind": "report", "data": print})


def test_the_messages_before_garbage_arrive() -> None:
    stream = frames.Decoder().feed(frames.encode({"kind": "done"}) + b"no frame at all")
    assert next(stream) == {"kind": "done"}
    with pytest.raises(frames.FrameError, match="no frame at all"):
        next(stream)


class Unprintable:
    """An object whose text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no")


def test_plain_keeps_plain_data_and_turns_the_rest_into_text() -> None:
    assert frames.plain({"a": [1, (2.5, None)], "b": b"x"}) == {"a": [1, (2.5, None)], "b": b"x"}
    assert frames.plain([signal.SIGINT]) == [str(signal.SIGINT)]
    assert math.isnan(frames.plain(math.nan))
    assert frames.plain(Unprintable()) == "<unprintable Unprintable object: RuntimeError>"


def test_unmarked_tests_stay_in_the_process() -> None:
    assert choose(Marks(), IsolationConfig(), CLEAN) is None


@pytest.mark.parametrize(
    ("state", "method"),
    [
        (CLEAN, "fork"),
        (THREADED, "forkserver"),
        (INITIALIZED, "forkserver"),
        (POISONED, "forkserver"),
        (BLIND, "forkserver"),
    ],
)
def test_auto_forks_only_a_clean_process_without_threads(state: ProcessState, method: str) -> None:
    chosen = choose(Marks(isolated=True), IsolationConfig(), state)
    assert chosen is not None
    assert chosen.name == method
    assert bool(chosen.why) == (method != "fork")


@pytest.mark.parametrize("state", [CLEAN, THREADED, INITIALIZED])
def test_spawn_only_beats_every_other_wish(state: ProcessState) -> None:
    marks = Marks(spawn_only=True, isolated=True, method="fork", timeout=5)
    assert choose(marks, IsolationConfig(every_test="fork"), state) == Method("spawn", 5)


@pytest.mark.parametrize("state", [INITIALIZED, POISONED])
def test_a_fork_that_would_be_poisoned_is_refused_with_the_reason(state: ProcessState) -> None:
    method = choose(Marks(isolated=True, method="fork"), IsolationConfig(), state)
    assert method is not None
    assert "Nothing was forked" in method.refusal


@pytest.mark.parametrize("state", [CLEAN, THREADED, BLIND])
def test_a_fork_that_was_asked_for_is_done_otherwise(state: ProcessState) -> None:
    assert choose(Marks(isolated=True, method="fork"), IsolationConfig(), state) == Method("fork")


@pytest.mark.parametrize(
    "config",
    [
        IsolationConfig(debugger=True),
        IsolationConfig(inside=True),
        IsolationConfig(every_test="none"),
    ],
)
def test_nothing_is_isolated_under_the_debugger_or_twice(config: IsolationConfig) -> None:
    assert choose(Marks(spawn_only=True), config, CLEAN) is None


def test_a_marker_beats_the_session_and_its_time_limit() -> None:
    config = IsolationConfig(every_test="spawn", timeout=9)
    assert choose(Marks(), config, CLEAN) == Method("spawn", 9)
    assert choose(Marks(isolated=True), config, CLEAN) == Method("spawn", 9)
    marks = Marks(isolated=True, method="forkserver", timeout=1)
    assert choose(marks, config, CLEAN) == Method("forkserver", 1)
