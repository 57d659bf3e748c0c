"""Each message is known by what its library writes, and to the kind that it is of."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from pytest_cudafork.explain import kinds
from pytest_cudafork.explain.messages import (
    MESSAGES,
    message_in,
)

# What the libraries write, from logs and from their sources.
WRITTEN = {
    "E   pytest_cudafork.CudaForkError: fork refused at engine.py:18: CUDA was initialized at "
    "flash.py:7 (class body)": kinds.TOLD,
    "a forked child touched CUDA at post.py:7: CUDA was initialized at post.py:15 (script), before "
    "the fork": kinds.TOLD,
    "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with "
    "multiprocessing, you must use the 'spawn' start method": kinds.POISONED,
    "numba.cuda.cudadrv.error.CudaDriverError: CUDA initialized before forking": kinds.POISONED,
    "CRITICAL pid 12 forked from pid 11 after CUDA driver init": kinds.POISONED,
    "RuntimeError: CUDA driver initialization failed, you might not have a CUDA "
    "gpu.": kinds.INITIALIZATION,
    "cupy_backends.cuda.api.runtime.CUDARuntimeError: cudaErrorInitializationError: "
    "initialization error": kinds.INITIALIZATION,
    "Status: INTERNAL: CUDA error: Failed setting context: CUDA_ERROR_NOT_INITIALIZED: "
    "initialization error": kinds.INITIALIZATION,
    "[3] Call to cuInit results in CUDA_ERROR_NOT_INITIALIZED": kinds.INITIALIZATION,
    "pycuda._driver.LogicError: cuInit failed: initialization error": kinds.INITIALIZATION,
    "torch.AcceleratorError: CUDA error: initialization error": kinds.INITIALIZATION,
    "RuntimeError: CUDA error (3): initialization error": kinds.INITIALIZATION,
    "RuntimeError: cuda runtime error (3) : initialization error at x.cpp:33": kinds.INITIALIZATION,
    "host:44712:44746 [2] transport/nvls.cc:246 NCCL WARN Cuda failure 3 'initialization "
    "error'": kinds.INITIALIZATION,
    "host:12:12 [0] init.cc:1691 NCCL WARN Cuda failure 'initialization error'": (
        kinds.INITIALIZATION
    ),
    "RuntimeError: 0 active drivers ([]). There should only be one.": kinds.INITIALIZATION,
    "RuntimeError: Found no NVIDIA driver on your system. Please check": kinds.NO_GPU,
    "RuntimeError: The NVIDIA driver on your system is too old (found version 11040)": kinds.NO_GPU,
    "RuntimeError: No CUDA GPUs are available": kinds.NO_GPU,
    "RuntimeError: CUDA error: no CUDA-capable device is detected": kinds.NO_GPU,
    "CudaAPIError: [100] Call to cuInit results in CUDA_ERROR_NO_DEVICE": (kinds.NO_GPU),
    "E cuda_driver.cc:300] failed call to cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device": (
        kinds.NO_GPU
    ),
    "W cuda_driver.cc:269] failed call to cuInit: UNKNOWN ERROR (303)": kinds.NO_GPU,
    "E driver.cc:300] failed call to cuInit: CUDA_ERROR_NOT_INITIALIZED: initialization error": (
        kinds.INITIALIZATION
    ),
    "CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing env "
    "variable CUDA_VISIBLE_DEVICES after program start.": kinds.NO_GPU,
    "AssertionError: Torch not compiled with CUDA enabled": kinds.NO_CUDA_BUILD,
    "RuntimeError: Tried to instantiate dummy base class CUDAGraph": kinds.NO_CUDA_BUILD,
    "RuntimeError: torch.cuda.Stream requires CUDA support": kinds.NO_CUDA_BUILD,
    "CUDA error: operation not permitted when stream is capturing": kinds.CAPTURE,
    "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED": kinds.CAPTURE,
    "CUDA error: dependency created on uncaptured work in another stream": kinds.CAPTURE,
    "Exception: Capture cuda graph failed: CUDA error: capturing stream has unjoined "
    "work": kinds.CAPTURE,
    "operation would result in a merge of separate capture sequences": kinds.CAPTURE,
    "torch.AcceleratorError: CUDA error: operation would make the legacy stream depend on a "
    "capturing blocking stream": kinds.CAPTURE,
    "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT": kinds.CAPTURE,
    "RuntimeError: Cannot prepare for replay during capturing stage. during CUDA graph "
    "capture.": kinds.CAPTURE,
    "RuntimeError: Cannot call CUDAGeneratorImpl::current_seed during CUDA graph capture. If you "
    "need this call to be captured": kinds.CAPTURE,
    "CUDA error: operation failed due to a previous error during capture": kinds.CAPTURE_BROKEN,
    "code 901, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED": kinds.CAPTURE_BROKEN,
    "RuntimeError: Offset increment outside graph capture encountered unexpectedly.": kinds.RANDOM,
    "RuntimeWarning: os.fork() was called. os.fork() is incompatible with multithreaded code, and "
    "JAX is multithreaded, so this will likely lead to a deadlock.": kinds.THREADS,
    "DeprecationWarning: This process (pid=3) is multi-threaded, use of fork() may lead to "
    "deadlocks in the child.": kinds.THREADS,
    "An attempt has been made to start a new process before the current process has finished its "
    "bootstrapping phase.": kinds.BOOTSTRAP,
    "WARNING We must use the `spawn` multiprocessing start method. Overriding "
    "VLLM_WORKER_MULTIPROC_METHOD to 'spawn'.": kinds.SPAWN_FORCED,
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): "
    "{}": kinds.CONSEQUENCE,
}


@pytest.mark.parametrize(("text", "kind"), WRITTEN.items())
def test_what_is_written_is_known(text: str, kind: kinds.Kind) -> None:
    found = message_in(f"(EngineCore_DP0) ERROR 01-19 [core.py:7] {text}")
    assert found is not None
    assert found.kind is kind


def test_each_row_is_tried_above() -> None:
    assert {message_in(text) for text in WRITTEN} == set(MESSAGES)


@pytest.mark.parametrize(
    "text",
    ["", "RuntimeError: CUDA out of memory", "initialization error is a term", "fork() failed"],
)
def test_other_lines_are_not(text: str) -> None:
    assert message_in(text) is None


def test_blanks_between_the_words_do_not_matter() -> None:
    found = message_in("RuntimeError:  Cannot re-initialize \t CUDA in forked  subprocess")
    assert found is MESSAGES[0]


def test_torch_still_writes_what_its_rows_say() -> None:
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("torch is not installed: nothing to compare with")
    path = Path(next(iter(spec.submodule_search_locations)), "cuda", "__init__.py")
    source = re.sub(r'"\s*\n\s*"', "", path.read_text(encoding="utf-8"))
    for message in MESSAGES:
        if "torch/cuda/__init__.py" in message.source:
            assert message.words in source
