"""The libraries in C as files, and the typed way to talk to one that is loaded.

``phantom.py`` and ``injection.py`` load one each.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pytest_cudafork.compat.unpatched import contextlib, io, os, signal
from pytest_cudafork.observe.base.descriptors import above_the_streams
from pytest_cudafork.settings.real_driver import LIBCUDA, PHANTOM_FOLDER

if TYPE_CHECKING:
    from pytest_cudafork.compat.cpython_layout import Place
    from pytest_cudafork.compat.unpatched import ctypes

# Texts, as pathlib would be a fifth of what is imported in a watched program.
LIB = os.path.join(os.path.dirname(os.path.abspath(__file__)), "native", "lib")
PHANTOM_DRIVER = os.path.join(PHANTOM_FOLDER, LIBCUDA)
LIBCUDA_NAME = "libcuda.so"
"""The driver's other name, by which compilers find it; where there is a GPU, both are there."""
PHANTOM_NAME = os.path.join(PHANTOM_FOLDER, LIBCUDA_NAME)
PHANTOM_NVML = os.path.join(LIB, "nvml", "libnvidia-ml.so.1")
INJECTION = os.path.join(LIB, "libcudafork_injection.so")
_AFTER_FAILURES, _AFTER_ALL, _BEFORE = range(3)
"""When a C function's calls are told of; as in ``native/c_functions.c``."""

CLEAN, INITIALIZED, POISONED = 0, 1, 2


class WitnessUnavailable(RuntimeError):
    """A witness cannot be put in force in this process; the message says why."""


class NativeUnavailable(WitnessUnavailable):
    """The native libraries are not to be had here.

    Recoverable: without them touches through torch are still seen, others are not observable.
    """


@functools.cache
def _how_to_build() -> str:
    """Say what to do where the libraries are missing, or are for another machine."""
    from pytest_cudafork.observe.driver.reinstall import how_to_reinstall  # late: it takes long

    return f"Install a C compiler and reinstall: {how_to_reinstall()}"


def why_not() -> str:
    """Return why the native libraries cannot be used here, "" if they can."""
    if sys.platform != "linux":
        return f"The native libraries exist for Linux only, this is {sys.platform!r}."
    for path in (PHANTOM_DRIVER, PHANTOM_NAME, PHANTOM_NVML, INJECTION):
        if not os.path.isfile(path):
            return f"The native library {path!r} was not built. {_how_to_build()}"
    return ""


def require() -> None:
    """Check that the native libraries are there.

    Raises:
        NativeUnavailable: they are not.

    """
    reason = why_not()
    if reason:
        raise NativeUnavailable(reason)


def load(path: str, mode: int) -> ctypes.CDLL:
    """Load the library `path` with the flags `mode` of dlopen.

    Raises:
        NativeUnavailable: the loader refuses, for instance a library of another processor.

    """
    from pytest_cudafork.compat.unpatched import ctypes

    try:
        return ctypes.CDLL(path, mode=mode)
    except OSError as error:
        raise NativeUnavailable(f"{path!r} cannot be loaded: {error}. {_how_to_build()}") from None


def mapped(name: str) -> ctypes.CDLL | None:
    """Return the library of that name if this process has it; never load it."""
    from pytest_cudafork.compat import standard_library

    try:
        library: ctypes.CDLL = standard_library.mapped_library(name)
    except OSError:
        return None
    return library


class LoadedLibraries:
    """Counts what the loader has loaded into this process, which is cheap to ask, not to begin."""

    def __init__(self) -> None:
        from pytest_cudafork.compat.unpatched import ctypes

        class Info(ctypes.Structure):
            _fields_ = (
                ("address", ctypes.c_void_p),
                ("name", ctypes.c_char_p),
                ("headers", ctypes.c_void_p),
                ("header_count", ctypes.c_uint16),
                ("adds", ctypes.c_ulonglong),
            )

        self._adds: int | None = None
        self._has_adds = Info.adds.offset + Info.adds.size
        takes = ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.POINTER(Info), ctypes.c_size_t, ctypes.c_void_p
        )
        self._take = takes(self._take_info)
        self._ask = getattr(ctypes.CDLL(None), "dl_iterate_phdr", None)

    def _take_info(self, info: Any, size: int, _: object) -> int:
        self._adds = int(info[0].adds) if size >= self._has_adds else None
        return 1  # of the first library, as it is the same with all

    def count(self) -> int | None:
        """Return how many were ever loaded; None where the C library does not say."""
        if self._ask is not None:
            self._ask(self._take, None)
        return self._adds


@functools.cache
def loaded_libraries() -> LoadedLibraries:
    """Return the one of this process and of what is forked from it."""
    return LoadedLibraries()


def is_ours(library: ctypes.CDLL) -> bool:
    """Return whether the library is one of ours, and not NVIDIA's of the same name."""
    return hasattr(library, "cudafork_state")


class NativeWitness:
    """A loaded library of ours: the phantom driver or the injection."""

    def __init__(self, library: ctypes.CDLL) -> None:
        from pytest_cudafork.compat.unpatched import ctypes

        self.library = library
        library.cudafork_state.restype = ctypes.c_int
        library.cudafork_touch_count.restype = ctypes.c_long
        library.cudafork_unwritten.restype = ctypes.c_int
        library.cudafork_arm.argtypes = [ctypes.c_int, ctypes.c_int]
        library.cudafork_remember.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
        library.cudafork_remember.restype = None
        self.is_phantom = hasattr(library, "cudafork_set_face")
        if self.is_phantom:
            library.cudafork_set_face.argtypes = [ctypes.c_char_p]
            library.cudafork_get_face.restype = ctypes.c_char_p
            library.cudafork_reset.argtypes = [ctypes.c_int]
            pointer, thing, number = ctypes.c_void_p, ctypes.py_object, ctypes.c_int
            types = number, pointer, pointer, pointer, thing, thing, thing, number
            self._hook = _with_gil(library, "cudafork_hook", *types)
            self._unhook = _with_gil(library, "cudafork_unhook", number, number)

    def state(self) -> int:
        """Return `CLEAN`, `INITIALIZED` or `POISONED`, of this process."""
        return int(self.library.cudafork_state())

    def touch_count(self) -> int:
        """Return the touches of this process since it was forked or executed."""
        return int(self.library.cudafork_touch_count())

    def is_writing(self) -> bool:
        """Whether a touch was counted that is not in the ledger yet: a thread is at it."""
        return int(self.library.cudafork_unwritten()) > 0

    def remember(self, ledger: str, owner: str) -> None:
        """Say where touches go while the environment does not: a test may have cleared it."""
        self.library.cudafork_remember(os.fsencode(ledger), owner.encode())

    @property
    def face(self) -> str:
        """The phantom's face."""
        text: bytes = self.library.cudafork_get_face()
        return text.decode()

    def set_face(self, face: str | None) -> None:
        """Change the phantom's face in this process; None goes back to the environment's.

        Raises:
            ValueError: it is not a face.

        """
        if self.library.cudafork_set_face(None if face is None else face.encode()) != 0:
            from pytest_cudafork.settings.devices import parse_face

            parse_face(face or "")
            raise ValueError(f"The phantom driver does not know the face {face!r}.")

    def reset(self, state: int = CLEAN) -> None:
        """Make the phantom believe that this process is in `state`, with no touch so far."""
        self.library.cudafork_reset(state)

    def after_call(
        self, target: object, place: Place, tell: Callable[..., Any], *, always: bool
    ) -> Callable[[], None] | None:
        """Call *tell* after calls of *target* that failed, or after all; they go through *place*.

        It gets arguments, keywords (or None) and the error (or None); what it returns or raises
        takes the place of a failure, unless it returns None. Returns what takes it back; None where
        no more can be watched.
        """
        return self._watch(target, place, tell, _AFTER_ALL if always else _AFTER_FAILURES)

    def before_call(
        self, target: object, place: Place, tell: Callable[..., Any]
    ) -> Callable[[], None] | None:
        """Call *tell* before each call of *target*, which goes through *place*.

        It gets arguments, keywords (or None) and None; what it returns or raises takes the place of
        the call, unless it returns None. Returns as ``after_call`` does.
        """
        return self._watch(target, place, tell, _BEFORE)

    def _watch(
        self, target: object, place: Place, tell: Callable[..., Any], when: int
    ) -> Callable[[], None] | None:
        if not self.is_phantom:  # a real driver answers itself
            return None
        number = self._hook(*place, target, tell, None, when)
        if number < 0:
            return None
        taken = [number]

        def undo() -> None:
            while taken:  # once: the number may be another's by then
                self._unhook(taken.pop())

        return undo

    def arm(self) -> Callable[[], None]:
        """Let the library ask faulthandler for the stack of a thread that lacks the GIL.

        Returns a function that takes it back. Where no signal is free, nothing is armed: such a
        touch is then recorded without its Python stack.
        """
        from pytest_cudafork.compat.unpatched import faulthandler

        number = _free_signal()
        if number is None:
            return _nothing
        # faulthandler keeps the descriptor's number for good; it must outlive this call.
        fd = above_the_streams(os.memfd_create("cudafork", os.MFD_CLOEXEC))
        ours = os.fstat(fd).st_ino
        faulthandler.register(number, file=fd, all_threads=False, chain=False)
        if self.library.cudafork_arm(number, fd) != 0:  # armed too often already
            faulthandler.unregister(number)
            os.close(fd)
            return _nothing

        def undo() -> None:
            self.library.cudafork_arm(0, -1)
            faulthandler.unregister(number)
            # A test may have closed all files; the number may be that of another file by now.
            with contextlib.suppress(OSError):
                if os.fstat(fd).st_ino == ours:
                    os.close(fd)

        return undo


def _with_gil(library: ctypes.CDLL, name: str, *types: Any) -> Callable[..., int]:
    """Return a function of a library that is called with the GIL held; the first type is its own.

    The library's attributes are functions that let go of it.
    """
    from pytest_cudafork.compat.unpatched import ctypes

    function: Callable[..., int] = ctypes.PYFUNCTYPE(*types)((name, library))
    return function


def _nothing() -> None:
    """Take nothing back."""


def _free_signal() -> int | None:
    """Return a real-time signal that nobody handles, the last ones first; None if all are taken.

    `signal.getsignal` does not know of handlers that C code installed, faulthandler's among them.
    """
    try:
        taken = _handled_signals()
    except OSError:  # there is no /proc, or no descriptor left
        return None
    for number in range(signal.SIGRTMAX - 2, signal.SIGRTMIN + 2, -1):
        if not taken >> (number - 1) & 1 and signal.getsignal(number) == signal.SIG_DFL:
            return number
    return None


def _handled_signals() -> int:
    """Return the signals of this process that are caught or ignored, bit 0 for signal 1."""
    taken = 0
    with io.open("/proc/self/status", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith(("SigCgt:", "SigIgn:")):
                taken |= int(line.split()[1], 16)
    return taken
