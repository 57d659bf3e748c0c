"""The driver that a session sees, by the names that users give it.

The names are the values of ``--cuda-fork-device``. A phantom's face says what GPUs it shows:
``absent``, ``sm_90``, ``sm_90x2``.
"""

import enum
import re
from typing import NamedTuple

ABSENT = "absent"
"""The face of a phantom that shows no GPU."""
MOST_DEVICES = 16
AS_IF_A_GPU = "--cuda-fork-check --cuda-fork-device=phantom:sm_90 --cuda-fork-graphs=software"
"""The options by which code for a GPU runs without one."""
AS_IF_A_GPU_MEANS = (
    "runs tests as if a GPU was there: tensors lie on the CPU, CUDA graphs are software ones"
)
"""What these do, as it follows on a command."""

_FACE = r"sm_([1-9][0-9]{1,2})(?:x([1-9][0-9]?))?"  # compiled for the first face


class DeviceKind(enum.Enum):
    """Which driver the session sees."""

    AUTO = "auto"
    REAL = "real"
    PHANTOM = "phantom"
    NONE = "none"


# Annotations of this module are no texts: NamedTuple compiles each, while the plugin is imported.
class Device(NamedTuple):
    """The value of ``--cuda-fork-device``; ``face`` is "absent" or, for instance, "sm_90x2"."""

    kind: DeviceKind = DeviceKind.AUTO
    face: str = ABSENT


class Face(NamedTuple):
    """What the phantom pretends: ``capability`` is None where there is no GPU (``absent``)."""

    capability: tuple[int, int] | None
    devices: int


def resolve(device: Device) -> str:
    """Return "real", "none" or the phantom's face for this machine.

    Raises:
        ValueError: The real driver was asked for, and there is none.

    """
    from pytest_cudafork.settings.real_driver import has_real_driver, why_no_driver

    if device.kind is DeviceKind.REAL and not has_real_driver():
        raise ValueError(
            f"{DeviceKind.REAL.value}: no NVIDIA driver can be used here ({why_no_driver()}); use "
            "auto or phantom"
        )
    if device.kind is DeviceKind.NONE:
        return DeviceKind.NONE.value
    if device.kind is DeviceKind.PHANTOM:
        return device.face
    if device.kind is DeviceKind.REAL or has_real_driver():
        return DeviceKind.REAL.value
    return ABSENT


def parse_device(text: str) -> Device:
    """Read a device, for instance ``phantom:sm_90x2``.

    Raises:
        TypeError: it is no text.
        ValueError: the kind or the face is not one that exists.

    """
    if not isinstance(text, str):
        raise TypeError(f"device={text!r}: a text as that of --cuda-fork-device")
    kind_text, colon, face = text.partition(":")
    try:
        kind = DeviceKind(kind_text)
    except ValueError:
        kinds = ", ".join(one.value for one in DeviceKind)
        raise ValueError(
            f"{text!r} is not a device: use {kinds}, or phantom:sm_90 or phantom:sm_90x2"
        ) from None
    if not colon:
        return Device(kind)
    if kind is not DeviceKind.PHANTOM:
        raise ValueError(f"{text!r}: only the phantom takes a GPU, as in phantom:sm_90")
    parse_face(face)
    return Device(kind, face)


def parse_face(text: str) -> Face:
    """Read a face: ``absent``, ``sm_90`` or, for two devices, ``sm_90x2``.

    Raises:
        TypeError: it is no text.
        ValueError: it is not a face; the text names the rule.

    """
    if not isinstance(text, str):
        raise TypeError(f"a face of the phantom driver is a text, as in 'sm_90', not {text!r}")
    if text == ABSENT:
        return Face(None, 0)
    match = re.fullmatch(_FACE, text)
    devices = int(match[2] or 1) if match else 0
    if match is None or devices > MOST_DEVICES:
        raise ValueError(
            f"{text!r} is not a face of the phantom driver: it is 'absent', or 'sm_' with the "
            f"compute capability's digits and, for more than one device, 'x' with their number "
            f"from 1 to {MOST_DEVICES}. For instance 'sm_90' or 'sm_100x8'."
        )
    return Face(divmod(int(match[1]), 10), devices)
