"""Is CUDA initialized in this process? The driver is asked, and torch beside it.

Asking initializes nothing and loads no library. Who has initialized it is for the witnesses.
"""

from __future__ import annotations

import enum
import sys
from typing import NamedTuple

from pytest_cudafork.compat import proc_stat, standard_library, torch_internals
from pytest_cudafork.compat.unpatched import os
from pytest_cudafork.settings.real_driver import LIBCUDA

_CUDA_SUCCESS = 0
_CUDA_ERROR_NOT_INITIALIZED = 3
_CUDA_ERROR_DEINITIALIZED = 4
_CUDA_ERROR_NO_DEVICE = 100


class Verdict(enum.Enum):
    """What is known about CUDA in a process."""

    CLEAN = "clean"
    INITIALIZED = "initialized"
    POISONED = "poisoned"
    NOT_OBSERVABLE = "not observable"


class Driver(enum.Enum):
    """The driver library's own answer."""

    NOT_LOADED = "not loaded"
    NOT_INITIALIZED = "loaded, not initialized"
    INITIALIZED = "initialized"
    POISONED = "forked from an initialized process"
    UNKNOWN = "unknown"


class DriverAnswer(NamedTuple):
    """The driver's answer and, where it is ``UNKNOWN``, the reason in words."""

    driver: Driver
    detail: str = ""


class CudaState(NamedTuple):
    """CUDA in one process at one moment.

    ``torch_initialized`` and ``torch_in_bad_fork`` are torch's own flags, shown beside the driver's
    answer because they differ from it; None while torch is not imported.
    """

    verdict: Verdict
    driver: Driver
    torch_initialized: bool | None
    torch_in_bad_fork: bool | None
    why: str

    @property
    def initialized(self) -> bool:
        """Whether this very process initialized CUDA."""
        return self.verdict is Verdict.INITIALIZED

    @property
    def poisoned(self) -> bool:
        """Whether this process was forked from an initialized one, directly or through others."""
        return self.verdict is Verdict.POISONED

    @property
    def safe_to_fork(self) -> bool:
        """Whether a child forked now could use CUDA."""
        return self.verdict is Verdict.CLEAN


def ask_driver() -> DriverAnswer:
    """Ask the driver that is mapped into this process, if any.

    ``cuDeviceGetCount`` answers ``CUDA_ERROR_NOT_INITIALIZED`` before ``cuInit`` and never
    initializes anything. In a process forked from an initialized one it answers the same, so the
    caller must combine this with a record of forks.
    """
    from pytest_cudafork.compat.unpatched import ctypes

    try:
        library = standard_library.mapped_library(LIBCUDA)
    except Exception as error:
        if type(error) is OSError:
            return DriverAnswer(Driver.NOT_LOADED)
        # A hook of the audit allows no library to be opened, and may raise anything.
        return DriverAnswer(Driver.UNKNOWN, f"the driver could not be asked: {error!r}")
    own = getattr(library, "cudafork_state", None)
    if own is not None:  # our phantom knows more than a real driver tells
        return answer_of_phantom(own())
    get_count = getattr(library, "cuDeviceGetCount", None)
    if get_count is None:
        return DriverAnswer(
            Driver.UNKNOWN,
            f"the {LIBCUDA} in this process has no cuDeviceGetCount: it is not an NVIDIA driver",
        )
    count = ctypes.c_int()
    code = get_count(ctypes.byref(count))
    if code in (_CUDA_SUCCESS, _CUDA_ERROR_DEINITIALIZED):
        return DriverAnswer(Driver.INITIALIZED)
    if code in (_CUDA_ERROR_NOT_INITIALIZED, _CUDA_ERROR_NO_DEVICE):
        return DriverAnswer(Driver.NOT_INITIALIZED)
    return DriverAnswer(Driver.UNKNOWN, f"cuDeviceGetCount answered {code}")


def answer_of_phantom(state: int) -> DriverAnswer:
    """Return what the phantom's own word for its state means."""
    return DriverAnswer((Driver.NOT_INITIALIZED, Driver.INITIALIZED, Driver.POISONED)[state])


class TorchFlags(NamedTuple):
    """What torch itself says; None while torch is not imported."""

    initialized: bool | None
    in_bad_fork: bool | None


def ask_torch() -> TorchFlags:
    """Read torch's flags, if torch is imported; never imports it."""
    cuda = sys.modules.get("torch.cuda")
    # A module that is still being imported has no flags yet.
    bad_fork = torch_internals.bad_fork_flag(cuda)
    initialized = torch_internals.initialized_flag(cuda)
    # Nor has what a test puts in torch's place: a Mock's attributes are Mocks, and true.
    if not isinstance(initialized, bool) or not callable(bad_fork):
        return TorchFlags(None, None)
    in_bad_fork = bad_fork()
    return TorchFlags(initialized, in_bad_fork if isinstance(in_bad_fork, bool) else None)


def judge(
    answer: DriverAnswer,
    torch: TorchFlags,
    *,
    simulated_touch: bool = False,
    poisoned_by: int | None = None,
    forked_unwatched: bool = False,
) -> CudaState:
    """Combine everything that is known about this process; a pure function.

    Args:
        answer: the driver's answer.
        torch: torch's flags.
        simulated_touch: a CPU build of torch was asked something for which a CUDA build would have
            initialized the driver.
        poisoned_by: pid of the initialized process this one was forked from.
        forked_unwatched: this process was made by fork and nobody looked at its parent, which may
            have been initialized.

    """

    def state(verdict: Verdict, why: str) -> CudaState:
        return CudaState(verdict, answer.driver, torch.initialized, torch.in_bad_fork, why)

    if poisoned_by is not None:
        return state(Verdict.POISONED, f"forked from process {poisoned_by}, which was initialized")
    if answer.driver is Driver.POISONED:
        return state(Verdict.POISONED, "forked from a process in which CUDA was initialized")
    if torch.in_bad_fork:
        return state(Verdict.POISONED, "torch says that its CUDA was initialized before the fork")
    if answer.driver is Driver.INITIALIZED:
        return state(Verdict.INITIALIZED, "the driver says so")
    if torch.initialized:
        return state(Verdict.INITIALIZED, "torch says so")
    if simulated_touch:
        return state(Verdict.INITIALIZED, "a CUDA build of torch would have initialized the driver")
    if answer.driver is Driver.UNKNOWN:
        return state(Verdict.NOT_OBSERVABLE, answer.detail)
    if answer.driver is Driver.NOT_INITIALIZED and forked_unwatched:
        return state(
            Verdict.NOT_OBSERVABLE,
            "nobody looked at the parent when this process was forked (nothing watched yet, or the "
            "stack was at its limit), and the driver answers the same in a clean process and in "
            "one forked from an initialized one",
        )
    if answer.driver is Driver.NOT_LOADED:
        return state(Verdict.CLEAN, "no driver is loaded")
    return state(Verdict.CLEAN, "the driver is loaded and not initialized")


def forked_without_exec(proc: str = "/proc") -> bool | None:
    """Tell whether this process still runs the image it inherited from its parent by fork.

    ``exec`` lays out a new address space; a fork keeps the parent's, down to the random start of
    the stack. None where ``/proc`` does not tell, for instance when the parent has ended.
    """
    return runs_image_of("self", os.getppid(), proc)


def runs_image_of(pid: int | str, parent: int, proc: str = "/proc") -> bool | None:
    """Tell whether a process still runs the image that it inherited from its parent by fork.

    None where ``/proc`` does not tell: of a process of another user, of one that has ended.
    """
    # The kernel says 0 to those who may not know.
    own = int(proc_stat.field(f"{proc}/{pid}/stat", proc_stat.STACK) or 0)
    theirs = int(proc_stat.field(f"{proc}/{parent}/stat", proc_stat.STACK) or 0)
    return own == theirs if own and theirs else None
