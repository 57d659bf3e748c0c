"""What torch's present face refuses, and the stand-ins for the modules inside ``torch._C``."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_cudafork.observe.torch.present import Simulation


def refusal(what: str, face: str) -> RuntimeError:
    """Make the error for what only a GPU can do, under *face*."""
    return RuntimeError(
        f"pytest-cudafork's phantom GPU ({face}) answers questions but does not compute: refused"
        f" {what}. Run this on a machine with a GPU, or mark the test so that it is skipped here;"
        " or have tensors on 'cuda' lie on the CPU: pytest --cuda-fork-graphs=software, or run"
        " --captures."
    )


def refused_call(sim: Simulation, name: str) -> Callable[..., Any]:
    """Make a function that initializes CUDA, as the real one does, and raises `refusal`."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        sim.ensure()
        raise sim.refusal(name)

    return refuse


def refused_type(sim: Simulation, name: str) -> type:
    """Make a class of which no instance can be had."""
    refuse = refused_call(sim, name)
    return type(name, (), {"__module__": "torch._C", "__new__": refuse})


class _CudaError(int):
    """An error code of the CUDA runtime."""

    success: _CudaError


_CudaError.success = _CudaError(0)


def stand_in_modules(sim: Simulation) -> dict[str, object]:
    """Make the modules that a CUDA build has inside ``torch._C``."""

    def refused(name: str) -> Callable[..., Any]:
        return refused_call(sim, name)

    return {
        "_cudart": SimpleNamespace(
            cudaError=_CudaError,
            cudaGetErrorString=lambda error: f"CUDA error {int(error)}",
            cudaMemGetInfo=lambda device: sim.memory,
            cudaProfilerStart=lambda: _CudaError.success,
            cudaProfilerStop=lambda: _CudaError.success,
            cudaHostRegister=refused("cudaHostRegister"),
            cudaHostUnregister=refused("cudaHostUnregister"),
            cudaStreamCreate=refused("cudaStreamCreate"),
            cudaStreamDestroy=refused("cudaStreamDestroy"),
        ),
        "_cudnn": SimpleNamespace(
            is_cuda=True,
            getVersionInt=lambda: 91002,
            getRuntimeVersion=lambda: (9, 10, 2),
            getCompileVersion=lambda: (9, 10, 2),
        ),
        "_cusparselt": SimpleNamespace(getVersionInt=lambda: 701),
        "_nvtx": SimpleNamespace(
            rangePushA=lambda message: 0,
            rangePop=lambda: 0,
            rangeStartA=lambda message: 0,
            rangeEnd=lambda handle: None,
            markA=lambda message: None,
            deviceRangeStart=refused("deviceRangeStart"),
            deviceRangeEnd=refused("deviceRangeEnd"),
        ),
    }
