"""Only the very bytes that were stored under a key are its block."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sample_engine.kv_transfer.frame import (
    HEADER_BYTES,
    header_of,
    namespace_of,
    why_not_whole,
)

KEY = namespace_of("abc", "float32", 16) + "-00ff"


@given(st.binary(max_size=200))
def test_what_was_stored_is_whole(block: bytes) -> None:
    header = header_of(KEY, block)
    assert len(header) == HEADER_BYTES
    assert why_not_whole(KEY, header, block) is None
    assert why_not_whole(KEY + "0", header, block) == "it belongs to another key"


@given(st.binary(min_size=1, max_size=200), st.data())
def test_any_other_bytes_are_not(block: bytes, data: st.DataObject) -> None:
    frame = bytearray(header_of(KEY, block) + block)
    unused = (6, 7)  # the header's padding
    place = data.draw(st.sampled_from([at for at in range(len(frame)) if at not in unused]))
    frame[place] ^= data.draw(st.integers(1, 255))
    assert why_not_whole(KEY, frame[:HEADER_BYTES], frame[HEADER_BYTES:]) is not None


def test_it_is_said_what_is_wrong() -> None:
    block = b"keys and values"
    header = header_of(KEY, block)
    wrong = {
        "its header has 3 bytes instead of": (header[:3], block),
        "it begins with b'what'": (b"what" + header[4:], block),
        "it has the layout version 2, this engine reads 1": (
            header[:4] + b"\2" + header[5:],
            block,
        ),
        "it has 15 bytes instead of 4": (header, block[:4]),
        "its checksum does not fit": (header, block[::-1]),
    }
    for words, (head, body) in wrong.items():
        assert (why_not_whole(KEY, head, body) or "").startswith(words)


def test_engines_that_differ_have_other_keys() -> None:
    names = {
        namespace_of(model, dtype, size)
        for model in ("a", "b")
        for dtype in ("float32", "bfloat16")
        for size in (16, 32)
    }
    assert len(names) == 8
    assert all(name.startswith("v1-") for name in names)
