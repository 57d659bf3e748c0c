"""What front end and core say arrives as it was sent, or as an error with words."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from sample_engine.batch.outputs import CoreOutput, TokenLogprobs
from sample_engine.batch.request import FinishReason
from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.process.messages import (
    PROTOCOL,
    Abort,
    Add,
    Failed,
    MessageError,
    Metrics,
    MetricsWanted,
    Outputs,
    Ready,
    Stage,
    Stop,
    Stopped,
    decode_to_core,
    decode_to_front_end,
    encode,
)

HEAD = b"SE" + bytes((PROTOCOL,))
TEXT = st.text(max_size=20)
NUMBERS = st.integers(0, 2**63 - 1)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.floats(0, 10),
    top_k=st.integers(0, 1000),
    top_p=st.floats(0.01, 1),
    seed=st.none() | st.integers(-(2**63), 2**64 - 1),
    stop=st.lists(st.text(min_size=1, max_size=5), max_size=3).map(tuple),
    max_tokens=st.integers(1, 10**6),
    ignore_eos=st.booleans(),
)
PLAIN: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=10,
)
OUTPUTS = st.builds(
    CoreOutput,
    request_id=TEXT,
    new_token_ids=st.lists(NUMBERS, max_size=5).map(tuple),
    finish_reason=st.none() | st.sampled_from(FinishReason),
    num_cached_tokens=NUMBERS,
    num_preemptions=NUMBERS,
    error=st.none() | TEXT,
)
TO_CORE = (
    st.builds(Add, request_id=TEXT, prompt_token_ids=st.lists(NUMBERS, max_size=20), params=PARAMS)
    | st.builds(Abort, request_ids=st.lists(TEXT, max_size=3))
    | st.builds(MetricsWanted, number=NUMBERS)
    | st.builds(Stop)
)
TO_FRONT_END = (
    st.builds(Stage, text=TEXT)
    | st.builds(Ready, pid=NUMBERS, info=st.dictionaries(TEXT, PLAIN, max_size=3))
    | st.builds(Outputs, outputs=st.lists(OUTPUTS, max_size=4))
    | st.builds(Metrics, number=NUMBERS, values=st.dictionaries(TEXT, PLAIN, max_size=3))
    | st.builds(Failed, activity=TEXT, error_type=TEXT, text=TEXT, traceback=TEXT)
    | st.builds(Stopped)
)


@given(TO_CORE)
def test_what_is_said_to_the_core_arrives_as_it_was_said(message: Any) -> None:
    assert decode_to_core(encode(message)) == message


@given(TO_FRONT_END)
def test_what_is_said_to_the_front_end_arrives_as_it_was_said(message: Any) -> None:
    assert decode_to_front_end(encode(message)) == message


@given(st.binary(max_size=200))
@example(b"")
@example(b"SE")
@example(HEAD)
@example(HEAD + b"\xc1")
@example(HEAD + b"\x91" * 100_000)
@example(HEAD + b"\x81\xa4type\xa4stop\x00")
@example(b"GET / HTTP/1.1\r\n\r\n")
def test_any_other_bytes_are_an_error_that_names_them(frame: bytes) -> None:
    assume(frame[:2] != b"SE" or frame[2:3] in (b"", HEAD[2:]))  # another version is another error
    for decode in (decode_to_core, decode_to_front_end):
        with pytest.raises(MessageError) as caught:
            decode(frame)
        assert f"{len(frame)} bytes, {frame[:24]!r}" in str(caught.value)
        assert len(str(caught.value)) < 600


@given(TO_CORE, st.data())
def test_a_damaged_message_is_an_error_or_a_message(message: Any, data: st.DataObject) -> None:
    frame = bytearray(encode(message))
    at = data.draw(st.integers(0, len(frame) - 1))
    frame[at] ^= data.draw(st.integers(1, 255))
    try:
        found = decode_to_core(bytes(frame))
    except MessageError:
        return
    # Then the damage is in a value, and the value is of the right kind and in its range.
    assert type(found) is type(message)
    assert decode_to_core(encode(found)) == found


@given(TO_CORE, st.data())
def test_half_a_message_is_an_error(message: Any, data: st.DataObject) -> None:
    frame = encode(message)
    with pytest.raises(MessageError):
        decode_to_core(frame[: data.draw(st.integers(0, len(frame) - 1))])


@given(TO_FRONT_END)
def test_a_message_of_the_core_is_none_for_the_core(message: Any) -> None:
    with pytest.raises(MessageError, match="of the front end cannot be read"):
        decode_to_core(encode(message))


@given(st.integers(0, 255).filter(lambda version: version != PROTOCOL), st.binary(max_size=20))
def test_another_version_is_told_as_such_whatever_follows(version: int, rest: bytes) -> None:
    words = f"in version {version} of the protocol, this process speaks version {PROTOCOL}: the"
    with pytest.raises(MessageError, match=words):
        decode_to_front_end(b"SE" + bytes([version]) + rest)


def test_parameters_out_of_range_do_not_get_through() -> None:
    frame = encode(Add(request_id="a", prompt_token_ids=[1], params=SamplingParams(top_k=5)))
    wrong = frame.replace(b"top_k\x05", b"top_k\xfe")  # -2
    assert wrong != frame
    with pytest.raises(MessageError, match="top_k=-2 must be 0"):
        decode_to_core(wrong)


def test_a_value_that_msgpack_does_not_know_goes_as_its_text() -> None:
    class Kind:
        def __str__(self) -> str:
            return "a kind"

    found = decode_to_front_end(encode(Metrics(number=1, values={"kind": Kind(), "by": {0: 2}})))
    assert found == Metrics(number=1, values={"kind": "a kind", "by": {0: 2}})


def test_each_field_of_an_output_travels() -> None:
    """A field that is added to the values of the engine must not be lost on the way."""
    logprobs = (TokenLogprobs((1, 7), (-0.5, -0.25), 2),)
    output = CoreOutput("a", (1, 2), FinishReason.ERROR, 3, 4, "why", logprobs, "PromptError")
    found = decode_to_front_end(encode(Outputs(outputs=[output])))
    assert isinstance(found, Outputs)
    assert dataclasses.asdict(found.outputs[0]) == dataclasses.asdict(output)
    defaults = CoreOutput("", ())
    for field in dataclasses.fields(CoreOutput):
        assert getattr(output, field.name) != getattr(defaults, field.name), field.name
