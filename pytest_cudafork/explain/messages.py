"""The messages of torch 2.8 to 2.13, CUDA, NCCL, vLLM, Triton, CuPy, JAX, Numba and others.

Each row names the place where its words stand in that project, so that a release that changes them
can be compared. Words are looked for as they stand in a line, whatever is around them and however
many blanks are between them. ``broken`` has those that lie in several lines, or were cut.
"""

from __future__ import annotations

from typing import NamedTuple

from pytest_cudafork.explain import kinds
from pytest_cudafork.explain.kinds import Kind


class Message(NamedTuple):
    """A message of a library: its words, whose they are, and where they stand there."""

    words: str
    kind: Kind
    library: str
    source: str


_TORCH_INIT = "pytorch/pytorch torch/cuda/__init__.py, _lazy_init"
_TORCH_COUNT = "pytorch/pytorch c10/cuda/CUDAFunctions.cpp, device_count_impl"
_RUNTIME = "CUDA runtime, cudaGetErrorString"
_TORCH_RANDOM = "pytorch/pytorch aten/src/ATen/cuda/CUDAGeneratorImpl.cpp"
_DRIVER = "CUDA driver, cuGetErrorName"

MESSAGES = (
    Message("Cannot re-initialize CUDA in forked subprocess", kinds.POISONED, "torch", _TORCH_INIT),
    Message(
        "CUDA initialized before forking",
        kinds.POISONED,
        "Numba",
        "numba/numba numba/cuda/cudadrv/driver.py, _check_error",
    ),
    Message(
        "after CUDA driver init",
        kinds.POISONED,
        "Numba",
        "numba/numba numba/cuda/cudadrv/driver.py, _check_error (log)",
    ),
    Message(
        "CUDA driver initialization failed, you might not have a CUDA gpu",
        kinds.INITIALIZATION,
        "torch",
        _TORCH_COUNT,
    ),
    Message(
        "cudaErrorInitializationError", kinds.INITIALIZATION, "CuPy", "cupy/cupy, CUDARuntimeError"
    ),
    Message(
        "CUDA_ERROR_NOT_INITIALIZED",
        kinds.INITIALIZATION,
        "JAX, Numba, CuPy",
        "openxla/xla xla/stream_executor/cuda; " + _DRIVER,
    ),
    Message(
        "cuInit failed: initialization error",
        kinds.INITIALIZATION,
        "PyCUDA",
        "inducer/pycuda, LogicError",
    ),
    Message("CUDA error: initialization error", kinds.INITIALIZATION, "torch", _RUNTIME),
    Message(": initialization error", kinds.INITIALIZATION, "CUDA", _RUNTIME),
    Message(
        "Cuda failure 3 'initialization error'",
        kinds.INITIALIZATION,
        "NCCL",
        "NVIDIA/nccl src/include/cudawrap.h, CUCHECK",
    ),
    Message(
        "Cuda failure 'initialization error'",
        kinds.INITIALIZATION,
        "NCCL",
        "NVIDIA/nccl src/include/checks.h, CUDACHECK",
    ),
    Message(
        "0 active drivers ([]). There should only be one",
        kinds.INITIALIZATION,
        "Triton",
        "triton-lang/triton python/triton/runtime/driver.py, _create_driver",
    ),
    Message("Found no NVIDIA driver on your system", kinds.NO_GPU, "torch", _TORCH_COUNT),
    Message("NVIDIA driver on your system is too old", kinds.NO_GPU, "torch", _TORCH_COUNT),
    Message("No CUDA GPUs are available", kinds.NO_GPU, "torch", _TORCH_COUNT),
    Message(
        "changing env variable CUDA_VISIBLE_DEVICES after program start",
        kinds.NO_GPU,
        "torch",
        _TORCH_COUNT,
    ),
    Message("no CUDA-capable device is detected", kinds.NO_GPU, "CUDA", _RUNTIME),
    Message("CUDA_ERROR_NO_DEVICE", kinds.NO_GPU, "JAX, Numba, CuPy", _DRIVER),
    Message(
        "cuInit: UNKNOWN ERROR (303)",  # there is no libcuda.so.1
        kinds.NO_GPU,
        "TensorFlow",
        "openxla/xla xla/stream_executor/cuda, cuInit",
    ),
    Message(
        "Torch not compiled with CUDA enabled",
        kinds.NO_CUDA_BUILD,
        "torch",
        _TORCH_INIT,
    ),
    Message(
        "Tried to instantiate dummy base class CUDAGraph",
        kinds.NO_CUDA_BUILD,
        "torch",
        "pytorch/pytorch torch/_utils.py, _dummy_type",
    ),
    Message(
        "torch.cuda.Stream requires CUDA support",
        kinds.NO_CUDA_BUILD,
        "torch",
        "pytorch/pytorch torch/cuda/streams.py, Stream.__new__",
    ),
    Message("operation not permitted when stream is capturing", kinds.CAPTURE, "CUDA", _RUNTIME),
    Message("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", kinds.CAPTURE, "CUDA", _DRIVER),
    Message(
        "dependency created on uncaptured work in another stream", kinds.CAPTURE, "CUDA", _RUNTIME
    ),
    Message("capturing stream has unjoined work", kinds.CAPTURE, "CUDA", _RUNTIME),
    Message(
        "operation would result in a merge of separate capture sequences",
        kinds.CAPTURE,
        "CUDA",
        _RUNTIME,
    ),
    Message(
        "operation would make the legacy stream depend on a capturing blocking stream",
        kinds.CAPTURE,
        "CUDA",
        _RUNTIME,
    ),
    Message("CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", kinds.CAPTURE, "CUDA", _DRIVER),
    Message(
        "Cannot prepare for replay during capturing stage",
        kinds.CAPTURE,
        "torch",
        f"{_TORCH_RANDOM}, replay_prologue",
    ),
    Message(
        "Cannot call CUDAGeneratorImpl::current_seed during CUDA graph capture",
        kinds.CAPTURE,
        "torch",
        f"{_TORCH_RANDOM}, current_seed; CUDAGraphsUtils.cuh, assertNotCapturing",
    ),
    Message(
        "operation failed due to a previous error during capture",
        kinds.CAPTURE_BROKEN,
        "CUDA",
        _RUNTIME,
    ),
    Message("CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", kinds.CAPTURE_BROKEN, "CUDA", _DRIVER),
    Message(
        "Offset increment outside graph capture encountered unexpectedly",
        kinds.RANDOM,
        "torch",
        _TORCH_RANDOM,
    ),
    Message(
        "os.fork() is incompatible with multithreaded code, and JAX is multithreaded",
        kinds.THREADS,
        "JAX",
        "jax-ml/jax jax/_src/xla_bridge.py",
    ),
    Message(
        "is multi-threaded, use of fork() may lead to deadlocks",
        kinds.THREADS,
        "Python",
        "python/cpython Modules/posixmodule.c, warn_about_fork_with_threads",
    ),
    Message(
        "before the current process has finished its bootstrapping phase",
        kinds.BOOTSTRAP,
        "Python",
        "python/cpython Lib/multiprocessing/spawn.py, _check_not_importing_main",
    ),
    Message(
        "We must use the `spawn` multiprocessing start method",
        kinds.SPAWN_FORCED,
        "vLLM",
        "vllm-project/vllm vllm/utils, _maybe_force_spawn",
    ),
    Message(
        "Engine core initialization failed. See root cause above",
        kinds.CONSEQUENCE,
        "vLLM",
        "vllm-project/vllm vllm/v1/engine/utils.py",
    ),
    Message(
        "CUDA was initialized at",
        kinds.TOLD,
        "pytest-cudafork",
        "pytest_cudafork/observe/story/words.py, initialized_at",
    ),
)
"""More particular words come before more general ones: a line counts as the first that fits."""


_QUOTED = f'"{MESSAGES[0].words}"'
"""How a story of ours says what an error would have been."""


def message_in(line: str) -> Message | None:
    """Return the message that a line holds; None for none."""
    line = _blanks_as_one(line).replace(_QUOTED, "")
    return next((message for message in MESSAGES if message.words in line), None)


def _blanks_as_one(line: str) -> str:
    return " ".join(line.split())
