"""What the CUDA driver says of the contexts of this process: which are broken, in its own words.

Nothing here initializes the driver, makes a context, or clears an error that the user's code
should see: ``cuCtxSynchronize`` leaves the runtime's last error alone, and is asked only where
contexts are and no capture is known to run. It waits for what the test has started, whose errors
come no earlier.

Not seen: contexts that are neither current in this thread nor a device's primary one (those of
``cuCtxCreate`` that were pushed away), and captures on streams of other threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_cudafork.compat.unpatched import contextlib, ctypes
from pytest_cudafork.observe.driver import native_libs, probe
from pytest_cudafork.settings.real_driver import LIBCUDA

if TYPE_CHECKING:
    from ctypes import CDLL

_SUCCESS = 0
_CAPTURE_ERRORS = range(900, 909)
"""From CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED to ..._WRONG_THREAD: a capture runs somewhere."""
_NO_ANSWER = (3, 4, 201, 709, 801)
"""Not initialized, deinitialized, invalid or destroyed context, not supported."""
_CAPTURE_IN_LOG = "(CUDA_ERROR_STREAM_CAPTURE_"
_LOG_BYTES = 25600
"""The size of the driver's own buffer for its log."""


class Broken(NamedTuple):
    """A context that answers every call with the same error.

    Attributes:
        device: Its device, or None where the driver does not say.
        code: The error.
        name: Its name, as ``CUDA_ERROR_ILLEGAL_ADDRESS``.
        words: The driver's words for it.

    """

    device: int | None
    code: int
    name: str
    words: str

    def __str__(self) -> str:
        """Say it in one line."""
        where = "" if self.device is None else f" of GPU {self.device}"
        return f"the CUDA context{where} is broken: {self.name} ({self.code}): {self.words}"


class Driver:
    """The driver of this process, asked after each test: of what ``look`` has found last."""

    def __init__(self) -> None:
        self._mapped: CDLL | None = None
        self._loaded = native_libs.loaded_libraries()
        self._without: int | None = None
        """How many libraries had ever been loaded when the driver's was last not among them."""
        self._library: CDLL | None = None
        """The driver's library, if it was initialized in this process at the last look."""
        self._log_place: Any = None
        """Where in the driver's log the test began; None: before the driver had one."""

    def begin(self) -> None:
        """Take note of what the driver has logged before a test."""
        self._log_place = None
        self.look()
        library = self._library
        if library is not None and hasattr(library, "cuLogsCurrent"):
            place = ctypes.c_uint()
            if library.cuLogsCurrent(ctypes.byref(place), 0) == _SUCCESS:
                self._log_place = place

    def look(self) -> None:
        """Look whether the driver is initialized in this process; what is asked goes by that.

        The loader looks for a driver that is not there in many folders, so it is asked only where
        it has loaded something since, or it would be most of the time of a short test.
        """
        self._library = None
        if self._mapped is None:
            loaded = self._loaded.count()
            if loaded is not None and loaded == self._without:
                return
            self._mapped = native_libs.mapped(LIBCUDA)
            self._without = loaded
        if self._mapped is not None and probe.ask_driver().driver is probe.Driver.INITIALIZED:
            self._library = self._mapped

    @property
    def is_initialized(self) -> bool:
        """Whether the driver was initialized in this process at the last look."""
        return self._library is not None

    def is_capturing(self) -> bool:
        """Whether a capture runs on a blocking stream of the current context."""
        library = self._library
        if library is None:
            return False
        status = ctypes.c_int()
        code = library.cuStreamIsCapturing(None, ctypes.byref(status))
        return code in _CAPTURE_ERRORS or (code == _SUCCESS and status.value != 0)

    def broken(self) -> Broken | None:
        """Return the first context that is broken, or None; waits for what runs on the GPUs.

        An error is one that stays if the same question gets it again.
        """
        library = self._library
        if library is None:
            return None
        for device, code in self._answers(library):
            if code != _SUCCESS and code not in _NO_ANSWER and code not in _CAPTURE_ERRORS:
                name, words = self._words(library, code)
                return Broken(device, code, name, words)
        return None

    def log(self) -> str:
        """Return what the driver has logged since the test began, if it keeps a log (12.9 on)."""
        library = self._library
        if library is None or not hasattr(library, "cuLogsDumpToMemory"):
            return ""
        buffer, size = ctypes.create_string_buffer(_LOG_BYTES), ctypes.c_size_t(_LOG_BYTES)
        place = None
        if self._log_place is not None:  # a copy: the driver moves it to the end
            place = ctypes.byref(ctypes.c_uint(self._log_place.value))
        if library.cuLogsDumpToMemory(place, buffer, ctypes.byref(size), 0) != _SUCCESS:
            return ""
        return buffer.value.decode("utf-8", "replace").strip()

    def refused_a_capture(self) -> bool:
        """Whether the driver's log has an error of a capture since the test began."""
        return _CAPTURE_IN_LOG in self.log()

    def _answers(self, library: CDLL) -> Iterator[tuple[int | None, int]]:
        """Ask each context that is there; yield its device and the error that stays, or 0."""
        current = ctypes.c_void_p()
        library.cuCtxGetCurrent(ctypes.byref(current))
        if current:
            device = ctypes.c_int()
            known = library.cuCtxGetDevice(ctypes.byref(device)) == _SUCCESS
            yield (device.value if known else None), _lasting(library)
        count = ctypes.c_int()
        library.cuDeviceGetCount(ctypes.byref(count))
        for device_number in range(count.value):
            flags, active = ctypes.c_uint(), ctypes.c_int()
            state = (ctypes.byref(flags), ctypes.byref(active))
            if library.cuDevicePrimaryCtxGetState(device_number, *state) == _SUCCESS and active:
                yield device_number, self._primary(library, device_number, current)

    def _primary(self, library: CDLL, device: int, current: Any) -> int:
        """Ask the primary context of a device, which is there; 0 if it is the current one."""
        context = ctypes.c_void_p()
        code: int = library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        if code != _SUCCESS:
            return code
        try:
            if context.value == current.value:
                return _SUCCESS
            code = library.cuCtxPushCurrent_v2(context)
            if code != _SUCCESS:
                return code
            try:
                return _lasting(library)
            finally:
                library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
        finally:
            library.cuDevicePrimaryCtxRelease_v2(device)

    @staticmethod
    def _words(library: CDLL, code: int) -> tuple[str, str]:
        """Return the name of an error and the driver's words for it."""
        texts = []
        for ask in (library.cuGetErrorName, library.cuGetErrorString):
            text = ctypes.c_char_p()
            with contextlib.suppress(ctypes.ArgumentError):
                ask(code, ctypes.byref(text))
            texts.append((text.value or b"").decode("utf-8", "replace"))
        return texts[0] or f"error {code}", texts[1] or "unknown to this driver"


def _lasting(library: CDLL) -> int:
    """Return the error that the current context answers twice, or 0."""
    code: int = library.cuCtxSynchronize()
    return code if code != _SUCCESS and library.cuCtxSynchronize() == code else _SUCCESS
