"""Asks the CUDA driver whether *this process* has initialized it.

torch's own flag does not answer it: ``torch.cuda.is_available()``, ``pin_memory()``, cupy, numba
and some imports initialize the driver and leave ``torch.cuda.is_initialized()`` False. The probe
never initializes anything and loads no library. Which line did it, the driver cannot say.
"""

from __future__ import annotations

import enum
import os
import sys
from typing import Any, NamedTuple

__all__ = ["DriverAnswer", "DriverState", "judge", "probe_driver"]

_LIBCUDA = "libcuda.so.1"
_SUCCESS = 0
_NOT_INITIALIZED = 3
_DEINITIALIZED = 4
_NO_DEVICE = 100


class DriverState(enum.Enum):
    """What is known of the driver in this process."""

    INITIALIZED = "initialized"
    NOT_INITIALIZED = "not initialized"
    UNKNOWN = "unknown"


class DriverAnswer(NamedTuple):
    """The state, and in words why it is held to be so.

    ``poisoned``: the process was forked from an initialized one, so that it can never use CUDA. It
    counts as initialized: a fork of it is as useless.
    """

    state: DriverState
    reason: str
    poisoned: bool = False


class Evidence(NamedTuple):
    """What was found in this process; None where a question could not be put.

    ``code`` is the driver's answer to ``cuDeviceGetCount``. ``loaded`` is whether there is a driver
    to answer. ``torch_initialized`` and ``torch_in_bad_fork`` are torch's flags. ``forked`` is
    whether the process was made by a fork without an exec.
    """

    loaded: bool | None
    code: int | None = None
    torch_initialized: bool | None = None
    torch_in_bad_fork: bool | None = None
    forked: bool | None = None


def probe_driver() -> DriverAnswer:
    """Ask whether this process has initialized CUDA, without initializing anything."""
    loaded, code = _ask_driver()
    initialized, in_bad_fork = _ask_torch()
    return judge(Evidence(loaded, code, initialized, in_bad_fork, _forked_without_exec()))


def judge(found: Evidence) -> DriverAnswer:
    """Make one answer of the evidence. Pure."""
    if found.torch_in_bad_fork:
        return DriverAnswer(
            DriverState.INITIALIZED,
            "this process was forked from one that had initialized CUDA (torch says so): neither "
            "it nor a child forked from it can use CUDA",
            poisoned=True,
        )
    if found.code in (_SUCCESS, _DEINITIALIZED):
        reason = "the CUDA driver is initialized in this process (the driver says so"
        if found.torch_initialized is False:
            reason += "; torch.cuda.is_initialized() is False and does not see it"
        return DriverAnswer(DriverState.INITIALIZED, f"{reason})")
    if found.torch_initialized:
        return DriverAnswer(
            DriverState.INITIALIZED, "CUDA is initialized in this process (torch says so)"
        )
    if found.loaded is None:
        return DriverAnswer(
            DriverState.UNKNOWN, "this platform cannot be asked whether a CUDA driver is loaded"
        )
    if not found.loaded:
        return DriverAnswer(DriverState.NOT_INITIALIZED, "no CUDA driver is loaded in this process")
    if found.code is None:
        return DriverAnswer(
            DriverState.UNKNOWN,
            f"the {_LIBCUDA} in this process has no cuDeviceGetCount and cannot be asked",
        )
    if found.code not in (_NOT_INITIALIZED, _NO_DEVICE):
        return DriverAnswer(
            DriverState.UNKNOWN,
            f"the CUDA driver answered {found.code} to cuDeviceGetCount, which says neither yes "
            "nor no",
        )
    if found.forked and found.code == _NOT_INITIALIZED:
        return DriverAnswer(
            DriverState.UNKNOWN,
            "this process was itself forked, and there the CUDA driver answers the same whether "
            "or not the parent had initialized it",
        )
    return DriverAnswer(
        DriverState.NOT_INITIALIZED, "the CUDA driver is not initialized in this process"
    )


def _ask_driver() -> tuple[bool | None, int | None]:
    """Whether a driver is loaded here, and its answer to ``cuDeviceGetCount``."""
    no_load = getattr(os, "RTLD_NOLOAD", None)
    if no_load is None:
        return None, None
    import ctypes

    try:
        # Gives the library only if it is loaded already: loading it would be no touch, but not
        # our business.
        library = ctypes.CDLL(_LIBCUDA, mode=os.RTLD_NOW | no_load)
    except OSError:
        return False, None
    ask = getattr(library, "cuDeviceGetCount", None)
    if ask is None:
        return True, None
    return True, int(ask(ctypes.byref(ctypes.c_int())))


def _ask_torch() -> tuple[bool | None, bool | None]:
    """Torch's flags "initialized" and "in a bad fork"; None while torch is not imported."""
    cuda: Any = sys.modules.get("torch.cuda")
    # Read, not asked: while torch is being imported, its functions are not there yet.
    initialized = getattr(cuda, "_initialized", None)
    bad_fork = getattr(cuda, "_is_in_bad_fork", None)
    if not isinstance(initialized, bool) or not callable(bad_fork):
        return None, None
    return initialized, bool(bad_fork())


def _forked_without_exec() -> bool | None:
    """Whether this process still runs the image that it got from its parent by a fork.

    An exec lays out a new address space; a fork keeps the parent's, the random start of the stack
    included. None where /proc does not tell. A parent that has ended is not recognized.
    """
    own, parent = (_start_of_stack(pid) for pid in ("self", str(os.getppid())))
    return own == parent if own and parent else None


def _start_of_stack(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The command's name, in parentheses, may hold anything: count the fields behind it.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0
    return int(fields[25]) if len(fields) > 25 else 0
