"""The names of the driver to see."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_cudafork.settings.devices import ABSENT, parse_device, parse_face


@settings(deadline=None)
@given(st.one_of(st.text(), st.from_regex(r"\A(phantom|real|none|auto)(:[a-z0-9_]*)?\Z")))
def test_a_device_is_read_or_refused_with_a_value_error(text: str) -> None:
    kind, colon, face = text.partition(":")
    try:
        device = parse_device(text)
    except ValueError as error:
        words = str(error)
    else:
        assert device.kind.value == kind
        assert device.face == (face if colon else "absent")
        return
    assert repr(face) in words or repr(text) in words


@pytest.mark.parametrize("face", ["sm_90", "sm_100x8", "sm_75x16"])
def test_a_face_has_a_capability_and_a_number_of_devices(face: str) -> None:
    read = parse_face(face)
    number, _, devices = face.removeprefix("sm_").partition("x")
    assert read.capability is not None
    assert f"{read.capability[0]}{read.capability[1]}" == number
    assert read.devices == int(devices or 1)


def test_the_absent_face_has_no_device() -> None:
    assert parse_face(ABSENT) == (None, 0)


@pytest.mark.parametrize("face", ["", "sm_", "sm_9", "sm_90x0", "sm_90x17", "sm_90 ", "gpu"])
def test_what_is_no_face_is_told_the_rule(face: str) -> None:
    with pytest.raises(ValueError, match=r"from 1 to 16\. For instance 'sm_90'"):
        parse_face(face)


@pytest.mark.parametrize("value", [None, 3, 1.5, True, b"sm_90", [], ["sm_90"]])
def test_what_is_no_text_is_told(value: Any) -> None:
    with pytest.raises(TypeError, match="a face of the phantom driver is a text"):
        parse_face(value)
    with pytest.raises(TypeError, match=r"device=.*: a text as that of --cuda-fork-device"):
        parse_device(value)


def test_only_the_phantom_takes_a_face() -> None:
    with pytest.raises(ValueError, match="only the phantom takes a GPU"):
        parse_device("real:sm_90")
