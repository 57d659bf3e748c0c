"""The table of torch's functions that initialize CUDA, and when each of them does.

Measured on an H200; the docstring of each predicate says what it decides.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from pytest_cudafork.compat import torch_internals
from pytest_cudafork.observe.base.hooking import Around
from pytest_cudafork.settings import environment

if TYPE_CHECKING:
    from pytest_cudafork.observe.torch.api import TorchWitness

Args = tuple[Any, ...]
Behavior = Callable[
    ["TorchWitness", str, Callable[..., Any], Args, dict[str, Any], "FrameType | None"], Any
]


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

        def around(
            proceed: Callable[..., Any],
            args: Args,
            kwargs: dict[str, Any],
            caller: FrameType | None,
        ) -> Any:
            __tracebackhide__ = True
            return self.behavior(witness, self.entry, proceed, args, kwargs, caller)

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

    def behavior(
        witness: TorchWitness,
        entry: str,
        proceed: Callable[..., Any],
        args: Args,
        kwargs: dict[str, Any],
        caller: FrameType | None,
    ) -> Any:
        if condition(args):
            witness.touch(entry, caller)
        return proceed(*args, **kwargs)

    return behavior


def touches_unless_missing(name: str) -> Behavior:
    """Record a call that fails because this build lacks ``torch._C.<name>``, as soon as it does.

    The check of the arguments comes first, and a call that fails it reaches no driver.
    """

    def behavior(
        witness: TorchWitness,
        entry: str,
        proceed: Callable[..., Any],
        args: Args,
        kwargs: dict[str, Any],
        caller: FrameType | None,
    ) -> Any:
        try:
            return proceed(*args, **kwargs)
        except AttributeError as error:
            if error.name == name:
                witness.touch(entry, caller)
            raise

    return behavior


def unless_recorded(
    witness: TorchWitness,
    entry: str,
    proceed: Callable[..., Any],
    args: Args,
    kwargs: dict[str, Any],
    caller: FrameType | None,
) -> Any:
    """Record a call that the witness below did not see, where torch is not initialized yet."""
    if initialized():
        return proceed(*args, **kwargs)
    with witness.unseen(entry, caller):
        return proceed(*args, **kwargs)


def pins(
    witness: TorchWitness,
    entry: str,
    proceed: Callable[..., Any],
    args: Args,
    kwargs: dict[str, Any],
    caller: FrameType | None,
) -> Any:
    """Record ``Tensor.pin_memory`` on a real CPU tensor; a fake tensor pins nothing."""
    torch: Any = sys.modules["torch"]
    if torch.overrides.has_torch_function(args):
        # As every method of Tensor that is written in Python does.
        method = torch.Tensor.pin_memory
        return torch.overrides.handle_torch_function(method, args, *args, **kwargs)
    if args[0].device.type == "cpu" and not torch_internals.is_fake(args[0]):
        witness.touch(entry, caller)
    return proceed(*args, **kwargs)


def pins_poisoned(
    witness: TorchWitness,
    entry: str,
    proceed: Callable[..., Any],
    args: Args,
    kwargs: dict[str, Any],
    caller: FrameType | None,
) -> Any:
    """Record pinning in a poisoned process, where cudart fails without asking the driver."""
    if not witness.poisoned():
        return proceed(*args, **kwargs)
    with witness.unseen(entry, caller):
        return proceed(*args, **kwargs)


def nvml_or_none(
    witness: TorchWitness,
    entry: str,
    proceed: Callable[..., Any],
    args: Args,
    kwargs: dict[str, Any],
    caller: FrameType | None,
) -> Any:
    """Answer 0 where NVML is missing.

    torch would ask the driver instead, which a machine with a GPU (and so with NVML) never does;
    the count of devices is 0 either way. MIG devices are counted by the driver there too.
    """
    count = proceed(*args, **kwargs)
    if count < 0 and not environment.value(environment.VISIBLE_GPUS).startswith("MIG-"):
        return 0
    return count


def _forks_generators(args: Args) -> bool:
    """``fork_rng`` on all devices: with a GPU it saves the state of each, here there is none."""
    devices, enabled, device_type = args[0], args[1], args[4]
    return bool(enabled) and devices is None and device_type in (None, "cuda")


def _selects(args: Args) -> bool:
    return bool(args) and isinstance(args[0], int) and args[0] >= 0


always = touches_if(lambda args: True)
selecting = touches_if(_selects)
unless_nvml = touches_if(lambda args: not nvml_answers())

ABSENT_CPU = (
    Row("torch.cuda", "torch.cuda", "is_available", unless_nvml),
    # Called by C++ too: factories with device="cuda", Tensor.cuda(), Tensor.to("cuda").
    Row("torch.cuda", "torch.cuda", "_lazy_init", always),
    Row("torch.cuda", "torch.cuda", "set_device", touches_unless_missing("_cuda_setDevice")),
    Row("torch.cuda", "torch.cuda", "_exchange_device", selecting),
    Row("torch.cuda", "torch.cuda", "_maybe_exchange_device", selecting),
    Row("torch.cuda", "torch.cuda", "Stream.__new__", always),
    # The runtime asks the driver whether the current stream captures.
    Row("torch.cuda", "torch.cuda.graphs", "is_current_stream_capturing", always),
    Row("torch.cuda", "torch.cuda.graphs", "CUDAGraph.__new__", always),
    Row("torch.cuda", "torch.cuda.memory", "MemPool.__new__", always),
    # torch.get_device_module() asks it, and keeps the answer as it would on a CUDA build.
    Row("torch.cuda", "torch._C", "_get_accelerator", always),
    Row("torch.accelerator", "torch.accelerator", "is_available", unless_nvml),
    Row("torch.accelerator", "torch._C", "_accelerator_getDeviceIndex", always),
    Row("torch.accelerator", "torch._C", "_accelerator_setDeviceIndex", selecting),
    Row("torch.accelerator", "torch._C", "_accelerator_exchangeDevice", selecting),
    Row("torch.accelerator", "torch._C", "_accelerator_getStream", always),
    Row("torch.accelerator", "torch._C", "_accelerator_setStream", always),
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
