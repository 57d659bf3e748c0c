"""Owns the framing of messages between a child process and the process that waits for it.

It does not know what the messages mean. Used in every process; a frame holds plain data only
(None, numbers, text, bytes, lists, tuples, dicts), so reading one never runs foreign code.
"""

from __future__ import annotations

import io
import math
import pickle
import struct
from collections.abc import Callable, Iterator
from typing import Any

_MAGIC = b"\xc0FRK"
_HEADER = struct.Struct("!4sQ")
MAX_FRAME_BYTES = 1 << 32
"""A longer frame is taken for garbage: 4 GiB is far beyond any report."""

Message = dict[str, Any]


class WireError(Exception):
    """Bytes arrived that are no frame. Unrecoverable for the channel they came on."""


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler that refuses every class and function."""

    def find_class(self, module: str, name: str) -> Any:
        """Refuse: a plain frame refers to nothing by name.

        Raises:
            WireError: Always.

        """
        raise WireError(f"the frame refers to {module}.{name}; frames hold plain data only")


def dumps(value: Any) -> bytes:
    """Return plain data (see ``plain``) as bytes for ``loads``."""
    return pickle.dumps(value, protocol=4)


def loads(data: bytes) -> Any:
    """Read plain data.

    Raises:
        WireError: The bytes are no pickle, or refer to a class or function.

    """
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except WireError:
        raise
    except Exception as error:  # a damaged pickle may raise nearly anything
        raise WireError(f"the frame cannot be read: {type(error).__name__}: {error}") from error


def encode(message: Message) -> bytes:
    """Return one frame for a message of plain data (see ``plain``)."""
    body = dumps(message)
    return _HEADER.pack(_MAGIC, len(body)) + body


def plain(value: Any, text: Callable[[Any], str] = str) -> Any:
    """Return ``value`` with everything that is not plain data replaced by ``text`` of it.

    Subclasses (enums, numpy numbers) count as not plain; NaN and infinities are plain.
    """
    kind = type(value)
    if value is None or kind in (bool, int, float, str, bytes):
        return value
    if kind is list:
        return [plain(part, text) for part in value]
    if kind is tuple:
        return tuple(plain(part, text) for part in value)
    if kind is dict:
        return {plain(key, text): plain(part, text) for key, part in value.items()}
    if isinstance(value, float) and math.isnan(value):
        return math.nan
    try:
        return text(value)
    except Exception as error:  # a broken __str__ must not cost the whole report
        return f"<unprintable {kind.__name__} object: {type(error).__name__}>"


class Decoder:
    """Turns a stream of bytes, cut anywhere, back into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """Add bytes and give the messages that they complete, those before garbage too.

        Raises:
            WireError: The stream holds something that is no frame.

        """
        self._buffer += data
        while len(self._buffer) >= _HEADER.size:
            magic, size = _HEADER.unpack_from(self._buffer)
            if magic != _MAGIC or size > MAX_FRAME_BYTES:
                head = bytes(self._buffer[:40])
                raise WireError(f"expected a frame, found the bytes {head!r}")
            if len(self._buffer) < _HEADER.size + size:
                break
            with memoryview(self._buffer) as view:
                body = bytes(view[_HEADER.size : _HEADER.size + size])
            del self._buffer[: _HEADER.size + size]
            message = loads(body)
            if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
                raise WireError(f"expected a message with a kind, found {message!r:.200}")
            yield message

    @property
    def pending(self) -> int:
        """How many bytes of an unfinished frame have arrived."""
        return len(self._buffer)
