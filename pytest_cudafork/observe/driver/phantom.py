"""The phantom driver in this process: loads it, and points child processes and Triton at it.

It stands in for ``libcuda.so.1`` where there is no driver. How torch is made to see its devices is
in ``observe/torch``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytest_cudafork.compat.unpatched import contextlib, os
from pytest_cudafork.observe.driver import native_libs
from pytest_cudafork.observe.driver.native_libs import NativeWitness
from pytest_cudafork.settings import environment
from pytest_cudafork.settings.devices import parse_face
from pytest_cudafork.settings.real_driver import LIBCUDA

if TYPE_CHECKING:
    from ctypes import CDLL

_LIBNVML = "libnvidia-ml.so.1"


class PhantomError(native_libs.WitnessUnavailable):
    """The phantom driver cannot take the driver's place in this process.

    Unrecoverable for the process: a mapped library cannot be exchanged.
    """


class PhantomWitness:
    """The phantom driver, installed in this process."""

    reason = ""  # it is never left alone

    def __init__(self, face: str, native: NativeWitness, undo: contextlib.ExitStack) -> None:
        self.face = face
        self.native = native
        self._undo = undo

    def undo(self) -> None:
        """Take back the environment and the signal. The library itself stays mapped."""
        self._undo.close()


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
    if native_libs.mapped(native_libs.LIBCUDA_NAME) is None:
        native_libs.load(native_libs.PHANTOM_NAME, os.RTLD_GLOBAL | os.RTLD_NOW)
    if present and native_libs.mapped(_LIBNVML) is None:
        native_libs.load(native_libs.PHANTOM_NVML, os.RTLD_GLOBAL | os.RTLD_NOW)
    native = NativeWitness(library)
    undo = contextlib.ExitStack()
    for name, text in variables(face, os.environ).items():
        environment.set_variable(undo, name, text)
    native.set_face(face)  # not left to the environment, which a test may clear for a while
    undo.callback(native.set_face, None)
    undo.callback(native.arm())
    return PhantomWitness(face, native, undo)


def variables(face: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which programs find it instead of a driver, with that face.

    Args:
        face: What it shows.
        environ: The environment that a program would have otherwise.

    Raises:
        ValueError: `face` is not one.

    """
    folder = os.path.dirname(native_libs.PHANTOM_DRIVER)
    path = environ.get(environment.LIBRARY_PATH, "")
    if parse_face(face).devices > 0:
        path = environment.with_folder(path, os.path.dirname(native_libs.PHANTOM_NVML))
    return {
        environment.FACE: face,
        environment.LIBRARY_PATH: environment.with_folder(path, folder),
        # Triton looks for the file itself, and asks ldconfig before LD_LIBRARY_PATH.
        environment.TRITON_DRIVER: folder,
    }


def _driver() -> CDLL:
    """Return our library, loaded so that every later search for libcuda.so.1 ends at it."""
    mapped = native_libs.mapped(LIBCUDA)
    if mapped is None:
        return native_libs.load(native_libs.PHANTOM_DRIVER, os.RTLD_GLOBAL | os.RTLD_NOW)
    if not native_libs.is_ours(mapped):
        raise PhantomError(
            f"A real {LIBCUDA!r} is mapped in this process already, and the loader gives it to "
            "everybody who asks from now on, so the phantom driver would see nothing. Install the "
            "phantom before anything loads CUDA, or watch the real driver instead."
        )
    return mapped
