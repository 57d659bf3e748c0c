"""Functions of bytes, each for one reader of data that others wrote: files, messages, arguments.

A reader may refuse with the exception that it promises and with no other, and what it took must
come back as it was where there is a way back. Anything else is a bug, and so raised.
"""

from __future__ import annotations

import contextlib
import os
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_cudafork.baseline.entries import CheckBaseline
from pytest_cudafork.baseline.file import BaselineError
from pytest_cudafork.explain import pasted
from pytest_cudafork.file_worker import commands
from pytest_cudafork.gpus import notes
from pytest_cudafork.gpus.profile import ProfileError, read_profile
from pytest_cudafork.hosts.parcel import Parcel
from pytest_cudafork.observe.base.ledger import Ledger
from pytest_cudafork.observe.handed_on import WatchSettings
from pytest_cudafork.observe.story.stories import History
from pytest_cudafork.page import command as page_command
from pytest_cudafork.process.protocol import frames, messages
from pytest_cudafork.report.merge import MergeError, merge, read_jobs
from pytest_cudafork.settings import option_texts, sizes
from pytest_cudafork.settings.devices import parse_device, parse_face
from pytest_cudafork.settings.gpu_requests import parse_gpus
from pytest_cudafork.settings.markers import MARKERS, MarkerError, read_marks

COOKIE = bytes(range(frames.COOKIE_BYTES))
_MARK = b"\xc0FRK"
_LEDGER = b'\n{"lost": 0, "k": "ledger", "id": "1-1", "pid": 1}\n'
_KEYWORDS = sorted({name for marker in MARKERS for name in marker.keywords} | {"n", "other"})


def message(data: bytes) -> None:
    """The protocol between processes: the stream, a frame's body, and what the data means."""
    decoder = frames.Decoder(COOKIE)
    with contextlib.suppress(frames.FrameError):
        list(decoder.feed(data))
    head = _MARK + COOKIE + struct.pack("!QI", len(data), zlib.crc32(data))
    decoder = frames.Decoder(COOKIE)
    with contextlib.suppress(frames.FrameError):
        for plain in decoder.feed(head + data):
            decoded = messages.decode(plain)
            again = frames.Decoder(COOKIE).feed(frames.encode(decoded.to_plain(), COOKIE))
            assert repr([messages.decode(each) for each in again]) == repr([decoded])


def ledger(data: bytes) -> None:
    """The ledger, to which any process of a session may write, and what is told from it."""
    reader = Ledger(os.devnull).reader()
    half = len(data) // 2
    records = [*reader._parse(data[:half]), *reader._parse(reader._tail + data[half:])]
    history = History(records)
    for each in history.touches:
        assert isinstance(str(each), str)
        history.ancestors(each.pid)
        history.initializer(each.pid)


def merged(data: bytes) -> None:
    """The ledger of another job, which ``merge`` reads."""
    # a last line without an end would be waited for
    with _file(_LEDGER + data + b"\n") as path, contextlib.suppress(MergeError):
        merge(read_jobs([path]))


def baseline(data: bytes) -> None:
    """A baseline file."""
    with _file(data) as path, contextlib.suppress(BaselineError):
        found = CheckBaseline.read(path, "--update")
        found.write(path)
        assert CheckBaseline.read(path, "--update") == found


def marker(data: bytes) -> None:
    """The arguments of markers: the name of one, keywords and values, a byte for each choice."""
    source = iter(data)
    name = MARKERS[next(source, 0) % len(MARKERS)].name
    given = [_value(source) for _ in range(next(source, 0) % 3)]
    keywords = {
        _KEYWORDS[next(source, 0) % len(_KEYWORDS)]: _value(source)
        for _ in range(next(source, 0) % 4)
    }
    mark = pytest.Mark(name, tuple(given), keywords, _ispytest=True)
    config = SimpleNamespace(stash={}, getini=lambda name: [])
    item = SimpleNamespace(iter_markers=lambda: [mark], config=config)
    with contextlib.suppress(MarkerError):
        read_marks(cast(pytest.Item, item))


def option(data: bytes) -> None:
    """The texts of options: markers of a suite, GPUs, devices, sizes, limits."""
    text = data.decode("utf-8", "surrogateescape")
    readers: tuple[Callable[[str], Any], ...] = (
        *(option_texts.parse_marker_map, option_texts.parse_limit, option_texts.parse_gib),
        *(option_texts.parse_level, parse_gpus, parse_device, parse_face, sizes.read_size),
    )
    for read in readers:
        with contextlib.suppress(ValueError):
            read(text)


def json_form(data: bytes) -> None:
    """What is read as JSON: orders of the file worker, notes on GPUs, profiles, parcels, pages."""
    text = data.decode("utf-8", "surrogateescape")
    for read in (Parcel.from_text, WatchSettings.from_text):
        with contextlib.suppress(ValueError):
            read(text)
    with contextlib.suppress(ValueError):
        commands.read(data)
    with _file(data) as path:
        assert isinstance(notes.read(path), dict)
        with contextlib.suppress(ProfileError):
            read_profile(path, {})
        with contextlib.suppress(page_command.DocumentError):
            page_command._read(path)


def log(data: bytes) -> None:
    """A pasted log, which ``explain`` reads."""
    pasted.read(data.decode("utf-8", "replace").splitlines())


TARGETS: dict[str, Callable[[bytes], None]] = {
    each.__name__: each
    for each in (message, ledger, merged, baseline, marker, option, json_form, log)
}
"""All of them, by the names of their corpora."""


def _value(source: Iterator[int]) -> Any:
    """Return a value of some kind, made of the next bytes."""
    kind, size = next(source, 0) % 9, next(source, 0)
    if kind == 0:
        return None
    if kind == 1:
        return size - 128
    if kind == 2:
        return float(f"{size - 128}e{next(source, 0) * 2}")
    if kind == 3:
        return size % 2 == 0
    if kind == 4:
        return bytes(next(source, 0) for _ in range(size % 32)).decode("utf-8", "surrogateescape")
    if kind == 5:
        return [_value(source) for _ in range(size % 3)]
    if kind == 6:
        return {str(_value(source)): _value(source) for _ in range(size % 3)}
    if kind == 7:
        return ("fork", "spawn", "inherit", "module", "20GiB", "software")[size % 6]
    return object() if size % 2 else float("nan")


@contextlib.contextmanager
def _file(data: bytes) -> Iterator[str]:
    """Make a file with these bytes, in memory where there is room."""
    folder = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=folder) as made:
        path = os.path.join(made, "file")
        with open(path, "wb") as file:
            file.write(data)
        yield path
