"""The present face of torch: its Python API believes in GPUs, on any build and machine.

It answers questions and does not compute: what needs a GPU is refused.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pytest_cudafork.compat import torch_internals
from pytest_cudafork.compat.unpatched import os, re
from pytest_cudafork.observe.base.hooking import Args, Around, Caller, Kwargs, Proceed, hook
from pytest_cudafork.observe.base.undo import UndoStack
from pytest_cudafork.observe.torch import c_names
from pytest_cudafork.observe.torch.devices import DeviceProperties, properties_of, uuid_of
from pytest_cudafork.observe.torch.refusals import refusal, refused_type, stand_in_modules
from pytest_cudafork.observe.torch.rows import Call, initialized, pins
from pytest_cudafork.observe.torch.streams import dress_dummies, stand_in_classes

if TYPE_CHECKING:
    from pytest_cudafork.observe.torch.api import TorchWitness

CUDA_VERSION = "12.8"
_SHOWN = "_cudafork_present_face"
"""An attribute of ``torch.cuda`` while a face is shown: there may be several witnesses in turn."""
_FACE = re.compile(r"sm_(\d+)(\d)(?:x(\d+))?")


def parse_face(face: str) -> tuple[tuple[int, int], int]:
    """Read "sm_90x2" as ((9, 0), 2): the compute capability and the number of devices.

    Raises:
        ValueError: *face* is not such a name.

    """
    match = _FACE.fullmatch(face)
    count = int(match[3] or 1) if match else 0
    if match is None or not 1 <= count <= 64:
        raise ValueError(
            f"{face!r} is no present face: write the compute capability and, if there is to be"
            " more than one GPU, their number (1 to 64), as in 'sm_90' or 'sm_90x2'"
        )
    return (int(match[1]), int(match[2])), count


def is_shown() -> bool:
    """Whether torch shows a present face now, in this process."""
    return hasattr(sys.modules.get("torch.cuda"), _SHOWN)


def arm(witness: TorchWitness, undo: UndoStack) -> None:
    """Put the face of *witness* in force in torch, which has been imported.

    Raises:
        ValueError: the face is not a present face.

    """
    Simulation(witness).install(undo)
    hook(undo, sys.modules["torch"].Tensor, "pin_memory", _pinning(witness))


class Simulation:
    """GPUs that answer: the state that torch keeps in C, for this process and its forks."""

    def __init__(self, witness: TorchWitness) -> None:
        self.capability, self._installed = parse_face(witness.face)
        self._visible: int | None = None
        self.torch: Any = sys.modules["torch"]
        self.core: Any = torch_internals.core()
        self.cuda: Any = sys.modules["torch.cuda"]
        self.device = 0
        self.properties: DeviceProperties = properties_of(self.capability)
        self._witness = witness
        self._flag_pid = 0
        self._streams: dict[int, tuple[int, int, int]] = {}
        self.next_stream = itertools.count(1)

    # What the table of names asks.

    @property
    def initialized(self) -> bool:
        """Whether torch's CUDA is up in this process."""
        return bool(self.cuda.is_initialized())

    @property
    def in_bad_fork(self) -> bool:
        """What torch's own flag says: torch itself had touched before the fork.

        Like the real flag it stays False where something else (ctypes, pinned memory) did.
        """
        return self._flag_pid not in (0, os.getpid())

    @property
    def arch_flags(self) -> str:
        """The architectures this build has code for; the device's own is always one of them."""
        own = "sm_{}{}".format(*self.capability)
        return " ".join(sorted({"sm_80", "sm_90", own}))

    @property
    def memory(self) -> tuple[int, int]:
        """Free and total memory of a device in bytes; all is free."""
        return self.properties.total_memory, self.properties.total_memory

    @property
    def dtypes(self) -> dict[str, Any]:
        """What ``torch.accelerator.get_device_capability`` tells: a GPU stores every type."""
        known = {value for value in vars(self.torch).values() if type(value) is self.torch.dtype}
        return {"supported_dtypes": known}

    @property
    def devices(self) -> int:
        """The number of visible devices: CUDA_VISIBLE_DEVICES is read once, at initialization."""
        if self._visible is None:
            self._visible = torch_internals.visible_device_count(self.cuda)
        return self._visible

    def count(self) -> int:
        """Count the devices as the runtime does: this initializes the driver."""
        self.probe("torch._C._cuda_getDeviceCount")
        if self._witness.poisoned() and not self.in_bad_fork:
            return 0  # the driver refuses, and the runtime finds nothing
        return self.devices

    def probe(self, entry: str) -> None:
        """Initialize the driver, not torch."""
        if not initialized():
            self._witness.touch(entry, sys._getframe(1))
            if not self._flag_pid:
                self._flag_pid = os.getpid()

    def capturing(self) -> bool:
        """Whether the current stream captures: never; the runtime asks the driver for it."""
        self.probe("torch._C._cuda_isCurrentStreamCapturing")
        return False

    def init(self) -> None:
        """Initialize as ``torch._C._cuda_init``.

        Raises:
            RuntimeError: something other than torch initialized the driver before a fork, or no
                device is visible.

        """
        self._witness.touch("torch._C._cuda_init", sys._getframe(1))
        if self._witness.poisoned() and not self.in_bad_fork:
            raise RuntimeError(
                "CUDA driver initialization failed, you might not have a CUDA gpu."
                " (pytest-cudafork: this process was forked from one in which CUDA was initialized)"
            )
        self._flag_pid = os.getpid()
        if not self.devices:
            raise RuntimeError("No CUDA GPUs are available")
        # They run on the CPU, and answer what tests ask of them: seed and state.
        generators = tuple(self.torch.Generator() for _ in range(self.devices))
        self.cuda.default_generators = generators

    def ensure(self) -> None:
        """Initialize torch's CUDA, as the C functions do that need a device."""
        torch_internals.lazy_init(self.cuda)

    def select(self, device: int) -> None:
        """Make *device* current; a negative one changes nothing.

        Raises:
            RuntimeError: there is no such device.

        """
        if device >= self.devices:
            raise RuntimeError("CUDA error: invalid device ordinal")
        if device >= 0:
            self.device = device

    def index_of(self, device: Any) -> int:
        """Give the index that *device* names, the current one for None."""
        index = torch_internals.device_index(self.cuda, device)
        return self.device if index is None or index < 0 else int(index)

    def stream(self, device: int) -> tuple[int, int, int]:
        """Give the current stream of *device* as torch packs it: id, device, device type."""
        device = self.device if device < 0 else device
        return self._streams.get(device, (0, device, 1))

    def set_stream(self, stream_id: int, device_index: int, device_type: int) -> None:
        """Make a stream, and its device, current."""
        self.select(device_index)
        self._streams[device_index] = (stream_id, device_index, device_type)

    def refusal(self, what: str) -> RuntimeError:
        """Make the error for what only a GPU can do."""
        return refusal(what, self._witness.face)

    # Putting it in force.

    def install(self, undo: UndoStack) -> None:
        """Patch torch; *undo* gets everything back.

        The state of torch.cuda (initialized, cached count, generators, calls queued for the
        initialization) starts fresh and comes back with the undo.
        """
        cpu_build = not torch_internals.is_cuda_build()
        self._clear_caches()
        undo.add(self._clear_caches)
        if cpu_build:
            dress_dummies(self, undo)
            for name in c_names.REFUSED_TYPES:
                undo.set(self.core, name, refused_type(self, name))
            for name, value in c_names.CONSTANTS.items():
                undo.set(self.core, name, value)
            undo.set(self.core, "_CudaDeviceProperties", DeviceProperties)
            undo.set(self.core, "_has_cuda", True)
        else:
            stand_in_classes(self, undo)
        for name, answer in c_names.functions().items():
            undo.set(self.core, name, self._function(name, answer))
        for name, value in stand_in_modules(self).items():
            undo.set(self.core, name, value)
        self._install_cuda(undo, cpu_build)

    def _install_cuda(self, undo: UndoStack, cpu_build: bool) -> None:
        """Patch what torch.cuda took from torch._C when it was imported, and its state."""
        cuda = self.cuda
        state = {
            _SHOWN: True,
            "_initialized": False,
            "_cached_device_count": None,
            "_queued_calls": torch_internals.queued_calls(cuda),
            "default_generators": (),
            "_get_device_properties": lambda device: self.properties,
            **torch_internals.functions_taken_from_core(self.core),
            # Below the reading of CUDA_VISIBLE_DEVICES.
            "_raw_device_count_nvml": lambda: self._installed,
            "_raw_device_uuid_nvml": lambda: [uuid_of(n) for n in range(self._installed)],
        }
        if cpu_build:
            state["_CudaDeviceProperties"] = DeviceProperties
            # On other builds torch knows its version.
            undo.set(sys.modules["torch.version"], "cuda", CUDA_VERSION)
        for name, value in state.items():
            undo.set(cuda, name, value)
        graphs: Any = sys.modules["torch.cuda.graphs"]
        undo.set(graphs, "_cuda_isCurrentStreamCapturing", self.capturing)
        undo.set(graphs, "_graph_pool_handle", lambda: (0, next(self.next_stream)))
        hook(undo, cuda, "_lazy_init", self._lazy_init)

    def _lazy_init(self, proceed: Proceed, args: Args, kwargs: Kwargs, caller: Caller) -> None:
        """Initialize; then refuse if C++ asked, because it is about to allocate or to copy.

        Refusing here keeps C++ from noting that CUDA is initialized, which could not be undone.
        """
        if self.in_bad_fork:
            self._witness.touch("torch.cuda._lazy_init", caller)
        proceed(*args, **kwargs)
        # Python code that calls this has its name; C++ calls it out of code that has not.
        if caller is None or "_lazy_init" not in caller.f_code.co_names:
            raise self.refusal("a tensor, generator or copy on a CUDA device")

    def _function(self, name: str, answer: c_names.Answer) -> Callable[..., Any]:
        """Bind one answer of the tables, with the name the real function has."""

        def function(*args: Any, **kwargs: Any) -> Any:
            return answer(self, *args, **kwargs)

        function.__name__ = function.__qualname__ = name
        function.__module__ = "torch._C"
        return function

    def _clear_caches(self) -> None:
        """Forget answers that depend on the face."""
        for module, name in (
            ("torch", "get_device_module"),
            ("torch.accelerator", "get_device_capability"),
        ):
            cached: Any = getattr(sys.modules.get(module), name, None)
            if hasattr(cached, "cache_clear"):
                cached.cache_clear()


def _pinning(witness: TorchWitness) -> Around:
    """Record and refuse ``Tensor.pin_memory``."""

    def around(proceed: Proceed, args: Args, kwargs: Kwargs, caller: Caller) -> Any:
        def refuse(*args: Any, **kwargs: Any) -> Any:
            if witness.poisoned():
                raise RuntimeError("CUDA error: initialization error")
            raise refusal("Tensor.pin_memory", witness.face)

        return pins(Call(witness, "torch.Tensor.pin_memory", refuse, args, kwargs, caller))

    return around
