"""Frames: plain data on its way from one process to another, safe to read whoever wrote it.

A frame holds plain data only (None, numbers, text, bytes, lists, tuples, dicts), so reading one
never runs foreign code. What the data means is in ``messages.py``.

A frame is a head (mark, cookie, length, checksum) and a body. The cookie is random and known to
one child and its parent only: what a test writes to a descriptor that is not its own is no frame,
and two writers that get between each other's bytes fail the checksum. The body is JSON, with bytes
and long text behind it. JSON and not pickle, because reading it takes time and memory in proportion
to its length whatever it says: a pickle of 12 bytes can ask for gigabytes, overflow the C stack or
keep its reader busy for ever, even where it may name no class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pytest_cudafork.compat import written_in_c
from pytest_cudafork.compat.unpatched import math, os, struct, zlib

_MAGIC = b"\xc0FRK"
COOKIE_BYTES = 16
NO_COOKIE = bytes(COOKIE_BYTES)
"""For frames between processes that have agreed on none."""
_LENGTHS = struct.Struct("!QI")
_HEAD_BYTES = len(_MAGIC) + COOKIE_BYTES + _LENGTHS.size
_TEXT_LENGTH = struct.Struct("!Q")
MAX_FRAME_BYTES = 1 << 32
"""A longer frame is taken for garbage: 4 GiB is far beyond any report."""

_TAG = "\0"
"""The key that marks a JSON object as something JSON has no word for."""
_LONG_TEXT = 1024
"""From how many characters on text is sent as it is, not quoted in JSON."""
_write_json = written_in_c.json_writer()
_read_json = written_in_c.json_reader()
_BARE: dict[type, Callable[[Any], Any]] = {
    int: int.__int__,
    float: float.__float__,
    str: str.__str__,
}
_AS_IT_IS = frozenset((type(None), bool, float))
"""What JSON has words for, whatever its value."""
_PLAIN = _AS_IT_IS | {int, str, bytes}
"""Both sets save a call for each part of a message, which in a process that was just forked takes
a microsecond."""
_LARGE_INTEGER = 1 << 63
_SHOWN_BYTES = 40

Plain = dict[str, Any]
"""The body of a frame; its "kind" says which message it is."""


class FrameError(Exception):
    """Bytes arrived that are no frame. Unrecoverable for the channel they came on."""


def new_cookie() -> bytes:
    """Return a cookie that no other process has."""
    return os.urandom(COOKIE_BYTES)


def dumps(value: Any) -> bytes:
    """Return plain data (see ``plain``) as bytes for ``loads``; subclasses lose their class.

    Raises:
        TypeError: It holds something that is not plain data.

    """
    blobs: list[bytes] = []
    text = _write_json(_pack(value, blobs)).encode("ascii")
    return b"".join((_TEXT_LENGTH.pack(len(text)), text, *blobs))


def loads(data: bytes) -> Any:
    """Read plain data.

    Raises:
        FrameError: The bytes are not what ``dumps`` makes.

    """
    try:
        (size,) = _TEXT_LENGTH.unpack_from(data)
        start = _TEXT_LENGTH.size + size
        if start > len(data):
            raise ValueError(f"a text of {size} bytes in a body of {len(data)}")
        blobs = _Blobs(data, start)
        text = str(memoryview(data)[_TEXT_LENGTH.size : start], "ascii")
        value = _read_json(text, blobs.unpack)
        blobs.check_empty()
    except Exception as error:  # a damaged body may raise nearly anything
        raise FrameError(f"the frame cannot be read: {type(error).__name__}: {error}") from error
    return value


def _pack(value: Any, blobs: list[bytes]) -> Any:
    """Return plain data in JSON's words; bytes and long text are appended to ``blobs``."""
    kind = type(value)
    if kind is str:
        if len(value) < _LONG_TEXT and value.isascii():
            return value
        blobs.append(value.encode("utf-8", "surrogatepass"))
        return {_TAG: "s", "v": len(blobs[-1])}
    if kind is int:
        small = -_LARGE_INTEGER < value < _LARGE_INTEGER
        return value if small else {_TAG: "i", "v": hex(value)}
    if kind in _AS_IT_IS:
        return value
    if kind is list:
        return [part if type(part) in _AS_IT_IS else _pack(part, blobs) for part in value]
    if kind is dict:
        if _TAG not in value and _is_ascii(value):
            return {
                key: part if type(part) in _AS_IT_IS else _pack(part, blobs)
                for key, part in value.items()
            }
        pairs = [[_pack(key, blobs), _pack(part, blobs)] for key, part in value.items()]
        return {_TAG: "d", "v": pairs}
    if kind is tuple:
        return {_TAG: "t", "v": [_pack(part, blobs) for part in value]}
    if kind is bytes:
        blobs.append(value)
        return {_TAG: "b", "v": len(value)}
    for base, bare in _BARE.items():  # sys.exit(an IntEnum), a str subclass as a reason
        if isinstance(value, base):
            return _pack(bare(value), blobs)
    raise TypeError(f"a message holds a {kind.__name__}; frames hold plain data only")


def _is_ascii(keys: dict[Any, Any]) -> bool:
    try:
        return "".join(keys).isascii()
    except TypeError:  # not all of them are text
        return False


class _Blobs:
    """The bytes behind the text of a body; each is used once, in its order."""

    def __init__(self, data: bytes, start: int) -> None:
        self._data = data
        self._at = start

    def unpack(self, packed: dict[str, Any]) -> Any:
        """Return what a JSON object stands for."""
        tag = packed.get(_TAG)
        if tag is None:
            return packed
        value = packed["v"]
        if tag == "t" and type(value) is list:
            return tuple(value)
        if tag == "s":
            return str(self._take(value), "utf-8", "surrogatepass")
        if tag == "b":
            return bytes(self._take(value))
        if tag == "i" and type(value) is str:
            return int(value, 16)
        if tag == "d" and type(value) is list:
            return {_checked_key(key): part for key, part in value}
        raise ValueError(f"{tag!r} with a {type(value).__name__} stands for nothing")

    def _take(self, size: Any) -> memoryview:
        end = self._at + size
        if type(size) is not int or size < 0 or end > len(self._data):
            raise ValueError(f"{size!r} bytes where {len(self._data) - self._at} are left")
        self._at, start = end, self._at
        return memoryview(self._data)[start:end]

    def check_empty(self) -> None:
        """Raise ValueError if bytes are left that nothing stands for."""
        if self._at != len(self._data):
            raise ValueError(f"{len(self._data) - self._at} bytes are left over")


def _checked_key(key: Any) -> Any:
    """Refuse a key within tuples within tuples: hashing one deep enough overflows the C stack."""
    if type(key) is tuple and any(type(part) is tuple for part in key):
        raise ValueError("a key is a tuple of tuples")
    return key


def encode(message: Plain, cookie: bytes = NO_COOKIE) -> bytes:
    """Return one frame for a message of plain data (see ``plain``).

    Raises:
        TypeError: The message holds something that is not plain data.

    """
    body = dumps(message)
    return b"".join((_MAGIC, cookie, _LENGTHS.pack(len(body), zlib.crc32(body)), body))


def plain(value: Any, text: Callable[[Any], str] = str) -> Any:
    """Return ``value`` with everything that is not plain data replaced by ``text`` of it.

    Subclasses (enums, numpy numbers) count as not plain; NaN and infinities are plain.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is list or kind is tuple:
        return kind([part if type(part) in _PLAIN else plain(part, text) for part in value])
    if kind is dict:
        return {
            key if type(key) is str else _plain_key(key, text): (
                part if type(part) in _PLAIN else plain(part, text)
            )
            for key, part in value.items()
        }
    if isinstance(value, float) and math.isnan(value):
        return math.nan
    try:
        return text(value)
    except Exception as error:  # a broken __str__ must not cost the whole report
        return f"<unprintable {kind.__name__} object: {type(error).__name__}>"


def _plain_key(key: Any, text: Callable[[Any], str]) -> Any:
    if type(key) is tuple and any(isinstance(part, tuple) for part in key):
        return plain(repr(key), text)
    return plain(key, text)


class Decoder:
    """Turns a stream of bytes, cut anywhere, back into messages.

    It keeps no more than what has arrived: a frame that claims to be long costs nothing.
    """

    def __init__(self, cookie: bytes = NO_COOKIE) -> None:
        self._buffer = bytearray()
        self._expected = _MAGIC + cookie

    def feed(self, data: bytes) -> Iterator[Plain]:
        """Add bytes and give the messages that they complete, those before garbage too.

        Raises:
            FrameError: The stream holds something that is no frame.

        """
        self._buffer += data
        while self._buffer:
            head = bytes(self._buffer[:_HEAD_BYTES])
            if not head.startswith(self._expected[: len(head)]):
                raise FrameError(f"expected a frame, found the bytes {head[:_SHOWN_BYTES]!r}")
            if len(head) < _HEAD_BYTES:
                break
            size, checksum = _LENGTHS.unpack_from(head, len(self._expected))
            if size > MAX_FRAME_BYTES:
                raise FrameError(f"a frame claims {size} bytes, at most {MAX_FRAME_BYTES} are due")
            if len(self._buffer) < _HEAD_BYTES + size:
                break
            with memoryview(self._buffer) as view:
                body = bytes(view[_HEAD_BYTES : _HEAD_BYTES + size])
            del self._buffer[: _HEAD_BYTES + size]
            yield _message(body, checksum)

    @property
    def pending(self) -> int:
        """How many bytes of an unfinished frame have arrived."""
        return len(self._buffer)


def _message(body: bytes, checksum: int) -> Plain:
    if zlib.crc32(body) != checksum:
        raise FrameError("the checksum of a frame is wrong: something else wrote in between")
    message = loads(body)
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        raise FrameError(f"expected a message with a kind, found a {type(message).__name__}")
    return message


def only(data: bytes, cookie: bytes) -> Plain | None:
    """Return what one frame holds; None if the bytes are anything else."""
    decoder = Decoder(cookie)
    try:
        found = list(decoder.feed(data))
    except FrameError:
        return None
    return found[0] if len(found) == 1 and not decoder.pending else None
