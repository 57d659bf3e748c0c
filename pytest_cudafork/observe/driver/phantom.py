"""Owns the phantom driver in this process: loads it, and points child processes and Triton at it.

It does not know what is recorded, nor how torch is made to see the phantom's devices.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from pytest_cudafork.observe.driver import native_libs
from pytest_cudafork.observe.driver.native_libs import NativeWitness
from pytest_cudafork.settings.environment import EnvironmentChanges

if TYPE_CHECKING:
    from ctypes import CDLL

FACE_ENV = "_CUDAFORK_FACE"
ABSENT = "absent"
MOST_DEVICES = 16

_FACE = r"sm_([1-9][0-9]{1,2})(?:x([1-9][0-9]?))?"
_LIBCUDA = "libcuda.so.1"
_LIBNVML = "libnvidia-ml.so.1"


class PhantomError(RuntimeError):
    """The phantom driver cannot take the driver's place in this process.

    Unrecoverable for the process: a mapped library cannot be exchanged.
    """


class Face(NamedTuple):
    """What the phantom pretends: `capability` is None where there is no GPU (``absent``)."""

    capability: tuple[int, int] | None
    devices: int


def parse_face(text: str) -> Face:
    """Read a face: ``absent``, ``sm_90`` or, for two devices, ``sm_90x2``.

    Raises:
        ValueError: it is not a face; the text names the rule.

    """
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


class PhantomWitness:
    """The phantom driver, installed in this process."""

    def __init__(self, face: str, native: NativeWitness, undo: list[Callable[[], None]]) -> None:
        self.face = face
        self.native = native
        self._undo = undo

    def undo(self) -> None:
        """Take back the environment and the signal. The library itself stays mapped."""
        while self._undo:
            self._undo.pop()()


def install(face: str) -> PhantomWitness:
    """Put the phantom driver in the driver's place, with that face, here and in child processes.

    Raises:
        ValueError: `face` is not one.
        NativeUnavailable: the native libraries were not built.
        PhantomError: a real driver is mapped in this process already.

    """
    present = parse_face(face).devices > 0
    native_libs.require()
    library = _driver()
    if present and native_libs.mapped(_LIBNVML) is None:
        native_libs.load(native_libs.PHANTOM_NVML, os.RTLD_GLOBAL | os.RTLD_NOW)
    native = NativeWitness(library)
    environment = EnvironmentChanges()
    environment.set(FACE_ENV, face)
    if present:
        environment.prepend_path("LD_LIBRARY_PATH", str(native_libs.PHANTOM_NVML.parent))
    environment.prepend_path("LD_LIBRARY_PATH", str(native_libs.PHANTOM_DRIVER.parent))
    # Triton looks for the file itself, and asks ldconfig before LD_LIBRARY_PATH.
    environment.set("TRITON_LIBCUDA_PATH", str(native_libs.PHANTOM_DRIVER.parent))
    native.set_face(face)  # not left to the environment, which a test may clear for a while
    return PhantomWitness(
        face, native, [environment.undo, lambda: native.set_face(None), native.arm()]
    )


def _driver() -> CDLL:
    """Return our library, loaded so that every later search for libcuda.so.1 ends at it."""
    mapped = native_libs.mapped(_LIBCUDA)
    if mapped is None:
        return native_libs.load(native_libs.PHANTOM_DRIVER, os.RTLD_GLOBAL | os.RTLD_NOW)
    if not native_libs.is_ours(mapped):
        raise PhantomError(
            f"A real {_LIBCUDA!r} is mapped in this process already, and the loader gives it to "
            "everybody who asks from now on, so the phantom driver would see nothing. Install the "
            "phantom before anything loads CUDA, or watch the real driver instead."
        )
    return mapped
