"""What front end and engine core say to each other. ``core_handle`` carries it.

A message is a frame: two letters, the protocol's version, and a msgspec structure as msgpack. Every
frame carries the version, so that two different sources of the engine (a program that was changed
while it ran) are reported as such and not misread.
"""

from __future__ import annotations

import functools
from typing import Any, TypeVar

import msgspec

from sample_engine.batch.outputs import CoreOutput
from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.errors import EngineError

__all__ = [
    "MOST_BYTES",
    "PROTOCOL",
    "Abort",
    "Add",
    "Failed",
    "MessageError",
    "Metrics",
    "MetricsWanted",
    "Outputs",
    "Ready",
    "Stage",
    "Step",
    "Stop",
    "Stopped",
    "ToCore",
    "ToFrontEnd",
    "ToRank",
    "decode_to_core",
    "decode_to_front_end",
    "decode_to_rank",
    "encode",
    "why_not_sent",
]

PROTOCOL = 3
# The largest frame that is taken: a length beyond it is not a length.
MOST_BYTES = 1 << 29
_LETTERS = b"SE"
_SHOWN = 24


class MessageError(EngineError):
    """What came is no message. Unrecoverable: the engine has to be made anew."""

    __module__ = "sample_engine"


class Add(msgspec.Struct, tag="add", frozen=True):
    """Front end: a new request."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams


class Abort(msgspec.Struct, tag="abort", frozen=True):
    """Front end: nothing more is wanted of these requests."""

    request_ids: list[str]


class MetricsWanted(msgspec.Struct, tag="metrics?", frozen=True):
    """Front end: say how it goes. The answer bears the same number."""

    number: int


class Stop(msgspec.Struct, tag="stop", frozen=True):
    """Front end: end the process."""


class Step(msgspec.Struct, tag="step", frozen=True):
    """Rank 0, to the others: compute a step. ``digest`` is what the one before came to."""

    digest: int


class Stage(msgspec.Struct, tag="stage", frozen=True):
    """Core: what it does now, while it starts."""

    text: str


class Ready(msgspec.Struct, tag="ready", frozen=True):
    """Core: it has started, with this outcome."""

    pid: int
    info: dict[str, Any]


class Outputs(msgspec.Struct, tag="outputs", frozen=True):
    """Core: what a step brought."""

    outputs: list[CoreOutput]


class Metrics(msgspec.Struct, tag="metrics", frozen=True):
    """Core: the answer to :class:`MetricsWanted`."""

    number: int
    values: dict[str, Any]


class Failed(msgspec.Struct, tag="failed", frozen=True):
    """Core: an error that it does not survive. ``activity`` is what it was busy with."""

    activity: str = msgspec.field(name="doing")  # its name in a frame
    error_type: str
    text: str
    traceback: str
    rank: int = 0


class Stopped(msgspec.Struct, tag="stopped", frozen=True):
    """Core: its last word after :class:`Stop`."""


ToCore = Add | Abort | MetricsWanted | Stop
ToRank = Add | Abort | Step | Stop
ToFrontEnd = Stage | Ready | Outputs | Metrics | Failed | Stopped
_Message = TypeVar("_Message")


def encode(message: ToCore | ToFrontEnd | ToRank) -> bytes:
    """Return the frame of a message. A value that msgpack does not know goes as its text."""
    frame = bytearray(_LETTERS)
    frame.append(PROTOCOL)
    msgspec.msgpack.Encoder(enc_hook=str).encode_into(message, frame, len(frame))
    return bytes(frame)


def decode_to_core(frame: bytes) -> ToCore:
    """Read a frame of the front end. Raises :class:`MessageError` that says what came."""
    return _decode(frame, _decoder_to_core(), "the front end")


def decode_to_front_end(frame: bytes) -> ToFrontEnd:
    """Read a frame of the engine core. Raises :class:`MessageError` that says what came."""
    return _decode(frame, _decoder_to_front_end(), "the engine core")


def decode_to_rank(frame: bytes) -> ToRank:
    """Read a frame of rank 0. Raises :class:`MessageError` that says what came."""
    return _decode(frame, _decoder_to_rank(), "rank 0")


def why_not_sent(message: ToCore) -> str | None:
    """Why a message of the front end would not arrive as it was sent; None: it would."""
    try:
        frame = encode(message)
        if len(frame) > MOST_BYTES:
            return f"it has {len(frame):,} bytes, and a message may have {MOST_BYTES:,}"
        _decoder_to_core().decode(memoryview(frame)[len(_LETTERS) + 1 :])
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        return str(error)
    return None


@functools.cache
def _decoder_to_core() -> msgspec.msgpack.Decoder[ToCore]:
    return msgspec.msgpack.Decoder(ToCore)


@functools.cache
def _decoder_to_front_end() -> msgspec.msgpack.Decoder[ToFrontEnd]:
    return msgspec.msgpack.Decoder(ToFrontEnd)


@functools.cache
def _decoder_to_rank() -> msgspec.msgpack.Decoder[ToRank]:
    return msgspec.msgpack.Decoder(ToRank)


def _decode(frame: bytes, decoder: msgspec.msgpack.Decoder[_Message], sender: str) -> _Message:
    if frame[:2] != _LETTERS or len(frame) < 3:
        raise MessageError(
            f"What came from {sender} is no message of this engine: {_shown(frame)}. Something "
            "else writes to its pipe, or its memory is damaged: make a new engine."
        )
    if frame[2] != PROTOCOL:
        raise MessageError(
            f"A message came from {sender} in version {frame[2]} of the protocol, this process "
            f"speaks version {PROTOCOL}: the engine's sources were changed while the program ran. "
            "Start the program again."
        )
    try:
        return decoder.decode(memoryview(frame)[3:])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MessageError(
            f"A message of {sender} cannot be read ({error}): {_shown(frame)}. Make a new engine."
        ) from None


def _shown(frame: bytes) -> str:
    more = f" and {len(frame) - _SHOWN} more" if len(frame) > _SHOWN else ""
    return f"{len(frame)} bytes, {frame[:_SHOWN]!r}{more}"
