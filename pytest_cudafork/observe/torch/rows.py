"""The table of torch's functions that initialize CUDA, and when each of them does.

Measured on an H200; the docstring of each predicate says what it decides.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_cudafork.compat import torch_internals
from pytest_cudafork.observe.base.hooking import Args, Around, Caller, Kwargs, Proceed
from pytest_cudafork.settings import environment

if TYPE_CHECKING:
    from pytest_cudafork.observe.torch.api import TorchWitness


class Call(NamedTuple):
    """A call of one of torch's functions, and the witness that it is told to."""

    witness: TorchWitness
    entry: str  # the name that the ledger holds
    proceed: Proceed  # the function
    args: Args
    kwargs: Kwargs
    caller: Caller

    def touch(self) -> None:
        """Record it as a touch."""
        self.witness.touch(self.entry, self.caller)

    def unseen(self) -> Seen:
        """Return a context that records it at its end if the witness below has not."""
        return self.witness.unseen(self.entry, self.caller)


Behavior = Callable[[Call], Any]


@dataclass(frozen=True)
class Row:
    """One function: the module after whose execution it is hooked, its place, what it does."""

    after: str
    owner: str
    name: str
    behavior: Behavior

    @property
    def entry(self) -> str:
        """The name that the ledger holds."""
        return f"{self.owner}.{self.name}".replace("._tensor.", ".").removesuffix(".__wrapped__")

    def around(self, witness: TorchWitness) -> Around:
        """Bind the row to *witness*."""

        def around(proceed: Proceed, args: Args, kwargs: Kwargs, caller: Caller) -> Any:
            __tracebackhide__ = True
            return self.behavior(Call(witness, self.entry, proceed, args, kwargs, caller))

        return around


class Seen:
    """A context that calls *tell* at its end if *tally* did not move, even on an exception."""

    def __init__(self, tally: Callable[[], tuple[int, int]], tell: Callable[[], None]) -> None:
        self._tally, self._tell = tally, tell

    def __enter__(self) -> None:
        self._before = self._tally()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._tally() == self._before:
            self._tell()


def nvml_answers() -> bool:
    """Whether torch was told to answer ``is_available`` from NVML, which initializes nothing."""
    return environment.value(environment.NVML_CHECK) == "1"


def initialized() -> bool:
    """Whether torch's CUDA is up in this process, or coming up: asking again does nothing new."""
    cuda: Any = sys.modules["torch.cuda"]
    return bool(cuda.is_initialized()) or torch_internals.is_initializing(cuda)


def touches_if(condition: Callable[[Args], bool]) -> Behavior:
    """Record before the call, if *condition* holds for its positional arguments."""

    def behavior(call: Call) -> Any:
        if condition(call.args):
            call.touch()
        return call.proceed(*call.args, **call.kwargs)

    return behavior


def sets_device(call: Call) -> Any:
    """Record ``set_device`` once the device has been read, and is no bool."""
    kind = touches_if(lambda args: False) if isinstance(call.args[0], bool) else _sets_device
    return kind(call)


def touches_unless_raising(kinds: type[Exception]) -> Behavior:
    """Record at the end of a call, unless an error of *kinds* says that it never got so far."""

    def behavior(call: Call) -> Any:
        try:
            answer = call.proceed(*call.args, **call.kwargs)
        except kinds:
            raise
        except BaseException:
            call.touch()
            raise
        call.touch()
        return answer

    return behavior


def touches_unless_missing(
    name: str, condition: Callable[[Args], bool] = lambda args: True
) -> Behavior:
    """Record a call that fails because this build lacks ``torch._C.<name>``, as soon as it does.

    The check of the arguments comes first, and a call that fails it reaches no driver.
    """

    def behavior(call: Call) -> Any:
        try:
            return call.proceed(*call.args, **call.kwargs)
        except AttributeError as error:
            if error.name == name and condition(call.args):
                call.touch()
            raise

    return behavior


def unless_recorded(call: Call) -> Any:
    """Record a call that the witness below did not see, where torch is not initialized yet."""
    if initialized():
        return call.proceed(*call.args, **call.kwargs)
    with call.unseen():
        return call.proceed(*call.args, **call.kwargs)


_sets_device = touches_unless_missing("_cuda_setDevice")


def pins(call: Call) -> Any:
    """Record ``Tensor.pin_memory`` on a real CPU tensor; a fake tensor pins nothing."""
    torch: Any = sys.modules["torch"]
    if torch.overrides.has_torch_function(call.args):
        # As every method of Tensor that is written in Python does.
        method = torch.Tensor.pin_memory
        return torch.overrides.handle_torch_function(method, call.args, *call.args, **call.kwargs)
    tensor = call.args[0]
    if tensor.device.type == "cpu" and not torch_internals.is_fake(tensor):
        call.touch()
    return call.proceed(*call.args, **call.kwargs)


def pins_poisoned(call: Call) -> Any:
    """Record pinning in a poisoned process, where cudart fails without asking the driver."""
    if not call.witness.poisoned():
        return call.proceed(*call.args, **call.kwargs)
    with call.unseen():
        return call.proceed(*call.args, **call.kwargs)


def asks_nvml(call: Call) -> Any:
    """Record what asks NVML about the current device, where NVML is missing.

    torch would ask itself for the number of the device, and be initialized for that.
    """
    try:
        return call.proceed(*call.args, **call.kwargs)
    except Exception as error:
        if type(error).__module__ == "pynvml" and _means_current_device(call.args[0]):
            call.touch()
        raise


PLACE = "_cudafork_place_of"
"""An attribute of ``torch.cuda`` while stand-ins make tensors on GPUs: the GPU of one, or None."""


MAKE = "_cudafork_make"
"""An attribute of ``torch.cuda`` meanwhile: makes what a type of torch, by its name, would make on
a GPU; it is called with the name and the arguments, and gives None for other types."""


def starts_engine(call: Call) -> Any:
    """Record a process's first backward pass, whatever its tensors are, unless stand-ins made them.

    The autograd engine makes a thread for each device then, and so asks how many there are. It does
    that once; a forked child takes it for done.
    """
    # What needs no gradient is refused before the engine begins.
    begins = all(getattr(output, "requires_grad", True) for output in call.args[0])
    place = getattr(sys.modules.get("torch.cuda"), PLACE, None) if begins else None
    if place is not None:
        begins = not any(place(output) is not None for output in call.args[0])
    if begins and call.witness.first("autograd engine"):
        call.touch()
    return call.proceed(*call.args, **call.kwargs)


def nvml_or_none(call: Call) -> Any:
    """Answer 0 where NVML is missing.

    torch would ask the driver instead, which a machine with a GPU (and so with NVML) never does;
    the count of devices is 0 either way. MIG devices are counted by the driver there too.
    """
    count = call.proceed(*call.args, **call.kwargs)
    if count < 0 and not environment.value(environment.VISIBLE_GPUS).startswith("MIG-"):
        return 0
    return count


def _forks_generators(args: Args) -> bool:
    """``fork_rng`` on all devices: with a GPU it saves the state of each, here there is none."""
    devices, enabled, device_type = args[0], args[1], args[4]
    return bool(enabled) and devices is None and device_type in (None, "cuda")


def _selects(args: Args) -> bool:
    return bool(args) and isinstance(args[0], int) and args[0] >= 0


def _selects_by_number(args: Args) -> bool:
    # torch.cuda, unlike torch.accelerator, takes no bool for the number of a device.
    return _selects(args) and not isinstance(args[0], bool)


def _checks_availability(args: Args) -> bool:
    return bool(args[0]) and not nvml_answers()


def _names_cuda(device: object, *, indexed: bool) -> bool:
    """Whether *device* names a CUDA device, by a text or an object, with an index or without."""
    torch: Any = sys.modules["torch"]
    try:
        named: Any = torch.device(device) if isinstance(device, str) else device
    except RuntimeError:
        return False
    is_cuda = isinstance(named, torch.device) and named.type == "cuda"
    return is_cuda and (named.index is not None) is indexed


def _means_current_device(device: object) -> bool:
    """Whether torch takes *device* for the current one: what it does not know counts as none."""
    torch: Any = sys.modules["torch"]
    if isinstance(device, str | torch.device):
        return _names_cuda(device, indexed=False)
    return not isinstance(device, int)


def _asks_current_device(args: Args) -> bool:
    return bool(args[1]) and _names_cuda(args[0], indexed=False)


always = touches_if(lambda args: True)
# Its one argument is a bool, as C++ takes it.
making_graph = touches_if(lambda args: all(a is None or isinstance(a, int) for a in args[1:]))
selecting = touches_if(_selects)
selecting_by_number = touches_if(_selects_by_number)
unless_nvml = touches_if(lambda args: not nvml_answers())


def _gives_code(args: Args) -> bool:
    return isinstance(args[-1], int)


def _gives_error(args: Args) -> bool:
    return _gives_code(args) and args[-1] != 0


unless_wrong_type = touches_unless_raising(TypeError)

CPU_BUILD = (
    Row("torch.autograd.graph", "torch.autograd.graph", "_engine_run_backward", starts_engine),
    # Kineto counts the GPUs, also to profile the CPU alone.
    Row("torch.autograd.profiler", "torch.autograd.profiler", "profile._prepare_trace", always),
    Row("torch.profiler", "torch.profiler.profiler", "supported_activities", always),
    # torch.__config__.show() tells the versions of CUDA and cuDNN at run time.
    Row("torch.cuda", "torch._C", "_show_config", always),
    Row("torch.backends.cuda", "torch._C", "_can_use_cudnn_attention", unless_wrong_type),
)
"""Calls which would initialize the driver on a CUDA build, and which work without one as well."""

ABSENT_CPU = (
    Row("torch.cuda", "torch.cuda", "is_available", unless_nvml),
    # Called by C++ too: factories with device="cuda", Tensor.cuda(), Tensor.to("cuda").
    Row("torch.cuda", "torch.cuda", "_lazy_init", always),
    Row("torch.cuda", "torch.cuda", "set_device", sets_device),
    Row("torch.cuda", "torch.cuda", "_exchange_device", selecting_by_number),
    Row("torch.cuda", "torch.cuda", "_maybe_exchange_device", selecting_by_number),
    Row("torch.cuda", "torch.cuda", "Stream.__new__", always),
    # For the state of each GPU; there is none here.
    Row("torch.cuda", "torch.cuda.random", "get_rng_state_all", always),
    # Temperature and the like: of the current device, once NVML answers.
    Row("torch.cuda", "torch.cuda", "_get_pynvml_handler", asks_nvml),
    Row("torch.cuda", "torch.cuda.memory", "list_gpu_processes", asks_nvml),
    Row(
        "torch.cuda",
        "torch.cuda",
        "CudaError.__init__",
        touches_unless_missing("cudaGetErrorString", _gives_code),
    ),
    Row(
        "torch.cuda", "torch.cuda", "check_error", touches_unless_missing("cudaError", _gives_error)
    ),
    # The runtime asks the driver whether the current stream captures.
    Row("torch.cuda", "torch.cuda.graphs", "is_current_stream_capturing", always),
    Row("torch.cuda", "torch.cuda.graphs", "CUDAGraph.__new__", making_graph),
    Row("torch.cuda", "torch.cuda.memory", "MemPool.__new__", always),
    Row(
        "torch.cuda.tunable",
        "torch.cuda.tunable",
        "get_results",
        touches_unless_missing("_cuda_tunableop_get_results"),
    ),
    Row(
        "torch.cuda.tunable",
        "torch.cuda.tunable",
        "get_rotating_buffer_size",
        touches_unless_missing("_cuda_tunableop_get_rotating_buffer_size"),
    ),
    # torch.get_device_module() asks it, and keeps the answer as it would on a CUDA build.
    Row("torch.cuda", "torch._C", "_get_accelerator", always),
    Row("torch.accelerator", "torch.accelerator", "is_available", unless_nvml),
    # Optimizers and checkpoints ask it in every step: a CUDA build then asks is_available().
    Row(
        "torch.accelerator",
        "torch.accelerator",
        "current_accelerator",
        touches_if(_checks_availability),
    ),
    Row(
        "torch.accelerator",
        "torch.accelerator._utils",
        "_get_device_index",
        touches_if(_asks_current_device),
    ),
    Row(
        "torch.accelerator",
        "torch.accelerator",
        "set_device_index",
        touches_if(lambda args: _names_cuda(args[0], indexed=True)),
    ),
    Row("torch.accelerator", "torch._C", "_accelerator_getDeviceIndex", always),
    Row("torch.accelerator", "torch._C", "_accelerator_setDeviceIndex", selecting),
    Row("torch.accelerator", "torch._C", "_accelerator_exchangeDevice", selecting),
    Row("torch.accelerator", "torch._C", "_accelerator_getStream", unless_wrong_type),
    Row("torch.accelerator", "torch._C", "_accelerator_setStream", unless_wrong_type),
    Row("torch.accelerator", "torch._C", "_accelerator_getMemoryInfo", always),
    Row("torch.accelerator", "torch._C", "_accelerator_getDeviceCapability", always),
    Row("torch._tensor", "torch._tensor", "Tensor.pin_memory", pins),
    # It compares its kernels with the devices: is_available() and their capabilities.
    Row("torch.backends.cudnn", "torch.backends.cudnn", "version", always),
)
"""Calls which would initialize the driver on a CUDA build; on a CPU build they reach none."""

ABSENT = (
    Row("torch.random", "torch.random", "fork_rng.__wrapped__", touches_if(_forks_generators)),
    Row("torch.cuda", "torch.cuda", "_device_count_nvml", nvml_or_none),
)
"""What differs from a machine with a GPU on every build that finds none."""

CUDA_BUILD = (
    Row("torch.cuda", "torch._C", "_cuda_getDeviceCount", unless_recorded),
    Row("torch.cuda", "torch._C", "_cuda_init", unless_recorded),
    Row("torch.cuda", "torch.cuda", "_lazy_init", unless_recorded),
    Row("torch._tensor", "torch._tensor", "Tensor.pin_memory", pins_poisoned),
)
"""Calls that may end before the driver: cudart keeps its answer, torch refuses a bad fork."""
