"""Tests that no bytes from a child crash, stall or mislead the reader of its messages."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import resource
import signal
import struct
import subprocess
import sys
import time
import tracemalloc
import zlib
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_cudafork.process.protocol import frames

COOKIE = bytes(range(16))
HEAD = b"\xc0FRK" + COOKIE
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())  # lone surrogates too
    | st.binary()
)
KEYS = SCALARS | st.tuples(SCALARS, SCALARS)


def plain(max_leaves: int) -> st.SearchStrategy[Any]:
    """Return a strategy for plain data."""
    return st.recursive(
        SCALARS,
        lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(KEYS, inner),
        max_leaves=max_leaves,
    )


# For tests of what happens to frames, whatever is in them: large ones take long to make up.
MESSAGES = st.dictionaries(st.text(), plain(4), max_size=2).map(
    lambda body: {**body, "kind": "report"}
)


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal in class and content; NaN is NaN here."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other) or one != one != other != other
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return same([*one], [*other]) and same([*one.values()], [*other.values()])
    return bool(one == other)


def frame(body: bytes, cookie: bytes = COOKIE) -> bytes:
    """Return a frame that is in order but for its body."""
    return b"\xc0FRK" + cookie + struct.pack("!QI", len(body), zlib.crc32(body)) + body


def body(text: str, blobs: bytes = b"") -> bytes:
    """Return a body of JSON text and bytes behind it."""
    return struct.pack("!Q", len(text)) + text.encode() + blobs


def read(stream: bytes) -> tuple[list[frames.Plain], frames.FrameError | None, int]:
    """Feed a stream; return the messages, the error, and how many bytes wait for more."""
    decoder = frames.Decoder(COOKIE)
    messages: list[frames.Plain] = []
    try:
        messages.extend(decoder.feed(stream))
    except frames.FrameError as error:
        return messages, error, 0
    return messages, None, decoder.pending


@pytest.mark.slow
@given(plain(20))
def test_plain_data_comes_back_as_it_was(value: Any) -> None:
    assert same(frames.loads(frames.dumps(value)), value)


@pytest.mark.parametrize(
    "value",
    [
        "\ud83d\ude00",  # two surrogates are not the character that they would make
        "\ud800",
        "\0",
        {"\0": "t", "v": []},
        {"$report_type": 1},
        10**5000,
        -(1 << 63),
        math.inf,
        "x" * 5000,
        "\xe9" * 5000,
        {(1, "a"): b"b", None: 1.5, b"k": ()},
        {1: 0, "1": 0} | {"é": 1},
    ],
    ids=itertools.count(),
)
def test_what_json_has_no_word_for_comes_back_as_it_was(value: Any) -> None:
    assert same(frames.loads(frames.dumps(value)), value)


@pytest.mark.slow
@given(st.lists(MESSAGES, max_size=4), st.integers(1, 60))
def test_frames_arrive_whatever_the_stream_is_cut_into(
    messages: list[frames.Plain], size: int
) -> None:
    stream = b"".join(frames.encode(message, COOKIE) for message in messages)
    decoder = frames.Decoder(COOKIE)
    arrived: list[frames.Plain] = []
    for start in range(0, len(stream), size):
        arrived += decoder.feed(stream[start : start + size])
    assert same(arrived, messages)
    assert decoder.pending == 0


@given(st.binary(min_size=1) | st.binary().map(lambda junk: b"\xc0FRK" + junk))
def test_bytes_without_the_cookie_are_refused_at_once(junk: bytes) -> None:
    messages, error, pending = read(junk)
    assert messages == []
    assert error is not None or HEAD.startswith(junk[: len(HEAD)])
    assert error is not None or pending == len(junk)


@given(MESSAGES, st.data())
def test_a_frame_cut_anywhere_waits_for_more_and_is_no_message(
    message: frames.Plain, data: st.DataObject
) -> None:
    whole = frames.encode(message, COOKIE)
    cut = data.draw(st.integers(0, len(whole) - 1))
    assert read(whole[:cut]) == ([], None, cut)


@pytest.mark.slow
@given(MESSAGES, MESSAGES, st.data())
def test_a_changed_byte_is_never_a_message(
    first: frames.Plain, second: frames.Plain, data: st.DataObject
) -> None:
    stream = bytearray(frames.encode(first, COOKIE))
    at = data.draw(st.integers(0, len(stream) - 1))
    stream[at] ^= data.draw(st.integers(1, 255))
    messages, error, pending = read(bytes(stream) + frames.encode(second, COOKIE))
    assert messages == []
    assert error is not None or pending  # a longer length waits, and the child's end is the error


@given(MESSAGES, st.binary(min_size=1), st.data())
def test_what_another_writer_puts_between_is_never_a_message(
    message: frames.Plain, junk: bytes, data: st.DataObject
) -> None:
    whole = frames.encode(message, COOKIE)
    at = data.draw(st.integers(1, len(whole) - 1))
    messages, error, pending = read(whole[:at] + junk + whole[at:])
    if messages:  # the very bytes that follow anyway were put in
        assert same(messages, [message])
    assert error is not None or pending


def test_the_cookie_of_another_child_is_refused() -> None:
    _, error, _ = read(frames.encode({"kind": "done"}, b"x" * 16))
    assert error is not None
    decoder = frames.Decoder()
    with pytest.raises(frames.FrameError):
        list(decoder.feed(frames.encode({"kind": "done"}, COOKIE)))


@pytest.mark.parametrize("size", [2**32, 2**32 + 1, 2**63, 2**64 - 1])
def test_a_length_that_is_only_claimed_allocates_nothing(size: int) -> None:
    tracemalloc.start()
    try:
        read(HEAD + struct.pack("!QI", size, 0) + b"x" * 1000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


HOSTILE = [
    "",
    "x",
    "nan",
    "[" * 200_000,
    "[" * 200_000 + "]" * 200_000,
    '{"kind":' * 100_000,
    '{"kind": "report", "data": ' + "[" * 50_000 + "]" * 50_000 + "}",
    "1" * 100_000,
    '{"kind": ' + "9" * 5000 + "}",
    '{"kind": 5}',
    '{"kind": ["report"]}',
    "[]",
    "5",
    '"kind"',
    '{"\\u0000": "b", "v": 9999999999999}',
    '{"\\u0000": "b", "v": -1}',
    '{"\\u0000": "b", "v": 1.5}',
    '{"\\u0000": "b", "v": true}',
    '{"\\u0000": "b"}',
    '{"\\u0000": "s", "v": "1"}',
    '{"\\u0000": "t", "v": {}}',
    '{"\\u0000": "t", "v": "text"}',
    '{"\\u0000": "i", "v": 5}',
    '{"\\u0000": "i", "v": "0xg"}',
    '{"\\u0000": "d", "v": [[[], 1]]}',
    '{"\\u0000": "d", "v": [[1]]}',
    '{"\\u0000": "d", "v": [1]}',
    '{"\\u0000": "?", "v": 1}',
    '{"\\u0000": [], "v": 1}',
    '{"kind": "report", "x": {"\\u0000": "d", "v": [[{"\\u0000": "t", "v": ['
    + '{"\\u0000": "t", "v": []}]}, 1]]}}',
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_a_body_that_no_child_makes_is_an_error_within_bounds(text: str) -> None:
    start = time.thread_time()
    messages, error, _ = read(frame(body(text, b"\xff\xff")))
    assert messages == []
    assert error is not None
    assert len(str(error)) < 1000
    assert time.thread_time() - start < 60  # of this thread's own time, whatever else runs


@pytest.mark.parametrize(
    "damaged",
    [b"", b"1234567", struct.pack("!Q", 5) + b"{}", struct.pack("!Q", 2**64 - 1) + b"{}"],
)
def test_a_body_without_its_parts_is_an_error(damaged: bytes) -> None:
    assert read(frame(damaged))[1] is not None


JSONISH = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["kind", "v", "\0", "data"]), inner)
        | st.fixed_dictionaries({"\0": st.sampled_from("tsbid?"), "v": inner | st.integers(-2, 9)})
    ),
)


@given(JSONISH, st.binary(max_size=20))
def test_any_json_is_a_message_or_an_error(value: Any, blobs: bytes) -> None:
    messages, error, _ = read(frame(body(json.dumps(value), blobs)))
    assert (error is None) == (len(messages) == 1)
    for message in messages:
        assert isinstance(message["kind"], str)


@given(st.binary())
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_any_body_is_a_message_or_an_error(junk: bytes) -> None:
    for damaged in (junk, body("{}", junk), body(junk.decode("latin-1"))):
        messages, error, _ = read(frame(damaged))
        assert (error is None) == (len(messages) == 1)


PICKLES = {
    # A memo index far beyond the memo: the reader of pickles allocates the room up to it.
    "memo": b"\x80\x04Nr\xff\xff\xff\x7f.",
    # Tuples in tuples as a key: hashing them overflows the C stack.
    "stack": b"\x80\x04()" + b"\x85" * 200_000 + b"Nd.",
    # The same tuple twice in a tuple, and so on: hashing takes 2**60 steps.
    "exponential": b"\x80\x04()" + b"2\x86" * 60 + b"Nd.",
    "code": b"cos\nsystem\n(S'exit 3'\ntR.",
}


@pytest.mark.parametrize("name", PICKLES)
def test_pickles_are_not_read_at_all(name: str) -> None:
    code = (
        "import sys; from pytest_cudafork.process.protocol import frames\n"
        "try: frames.loads(sys.stdin.buffer.read())\n"
        "except frames.FrameError: print('refused')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=PICKLES[name],
        capture_output=True,
        timeout=300,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (1 << 32, 1 << 32)),
    )
    assert done.stdout == b"refused\n", done.stderr.decode()


def test_a_report_of_ten_megabytes_takes_a_fraction_of_a_second() -> None:
    message = {"kind": "report", "data": {"sections": [("out", "0123456789\n" * 1_000_000)]}}
    start = time.thread_time()
    (arrived,), _, _ = read(frames.encode(message, COOKIE))
    assert time.thread_time() - start < 20
    assert arrived == message


def test_a_thousand_small_frames_in_one_read_are_not_copied_over_and_over() -> None:
    one = frames.encode({"kind": "warning", "text": "x" * 900}, COOKIE)
    start = time.thread_time()
    messages, _, _ = read(one * 20_000)
    assert len(messages) == 20_000
    assert time.thread_time() - start < 60


class Code(int):
    """A number with a class of its own, as an enum has."""


def test_subclasses_of_plain_data_lose_their_class_on_the_way() -> None:
    value = frames.loads(frames.dumps([Code(3), type("T", (str,), {})("text")]))
    assert same(value, [3, "text"])


def test_an_error_of_the_writer_leaves_no_half_frame() -> None:
    class Opaque:
        pass

    with contextlib.suppress(TypeError):
        frames.encode({"kind": "x", "data": Opaque()}, COOKIE)
    with pytest.raises(TypeError, match="Opaque; frames hold plain data only"):
        frames.encode({"kind": "x", "data": Opaque()}, os.urandom(16))


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=4,
)


@pytest.mark.slow
@given(st.lists(st.dictionaries(st.text(), VALUES, max_size=2), max_size=3), st.integers(1, 40))
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
