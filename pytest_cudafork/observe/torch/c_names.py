"""The functions that a CUDA build has in ``torch._C``, and how the present face answers each.

The names are those that CUDA builds 2.8 and 2.11 have and the CPU build 2.13 lacks, so that nothing
in torch's Python stumbles over a missing one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pytest_cudafork.observe.torch.devices import empty_memory_stats

if TYPE_CHECKING:
    from pytest_cudafork.observe.torch.present import Simulation

Answer = Callable[..., Any]


def harmless(value: Any) -> Answer:
    """Answer *value*; the real one initializes nothing."""
    return lambda sim, *args, **kwargs: value


def after_init(answer: Answer) -> Answer:
    """Initialize CUDA, as the real one does, then answer."""

    def call(sim: Simulation, *args: Any, **kwargs: Any) -> Any:
        sim.ensure()
        return answer(sim, *args, **kwargs)

    return call


def probing(name: str, answer: Answer) -> Answer:
    """Initialize the driver through ``torch._C.<name>``, and not torch; then answer."""

    def call(sim: Simulation, *args: Any, **kwargs: Any) -> Any:
        sim.probe(f"torch._C.{name}")
        return answer(sim, *args, **kwargs)

    return call


def _exchange(sim: Simulation, device: int) -> int:
    """Select *device*, giving back the previous; a negative one asks nothing."""
    if device < 0:
        return -1
    sim.ensure()
    previous = sim.device
    sim.select(device)
    return previous


def _select(sim: Simulation, device: int) -> None:
    """Select *device*; a negative one asks nothing."""
    _exchange(sim, device)


def _refuse(sim: Simulation, name: str) -> Any:
    sim.ensure()
    raise sim.refusal(name)


_nothing = after_init(harmless(None))


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Filled in for every name that stands in neither table below: work, or memory.
REFUSED = _words(
    """
    _broadcast _broadcast_coalesced _broadcast_out _scatter _scatter_out _gather _gather_out
    _nccl_all_gather _nccl_all_reduce _nccl_broadcast _nccl_init_rank _nccl_reduce
    _nccl_reduce_scatter _nccl_unique_id
    _construct_CUDA_Tensor_From_Storage_And_Metadata
    _cuda_beginAllocateCurrentStreamToPool _cuda_changeCurrentAllocator
    _cuda_checkPoolLiveAllocations _cuda_cudaCachingAllocator_raw_alloc
    _cuda_cudaCachingAllocator_raw_delete _cuda_cudaHostAllocator _cuda_customAllocator
    _cuda_getAllocator _cuda_getCheckpointState _cuda_getCurrentBlasHandle
    _cuda_getHipblasltVersion _cuda_jiterator_compile_and_launch_kernel
    _cuda_setCheckpointPoolState _cuda_sleep
    _free_And_Remove_DeleterFn _has_Standard_Deleter _set_storage_access_error_msg
    _set_storage_data_ptr_access_error_msg _tensors_data_ptrs_at_indices_equal
    """
)
"""Functions that compute, allocate or hand out pointers."""

REFUSED_TYPES = _words(
    """
    _CUDAGreenContext _CUDAPluggableAllocator _CUuuid _StaticCudaLauncher _StorageMeta
    _cuda_CUDAAllocator_AllocatorState
    """
)
"""Classes of which no instance can be had."""

CONSTANTS: dict[str, Any] = {
    "_PYBIND11_BUILD_ABI": "_cxxabi1018",
    "_PYBIND11_COMPILER_TYPE": "_gcc",
    "_PYBIND11_STDLIB": "_libstdcpp",
}

FUNCTIONS: dict[str, Answer] = {
    # The device: what initializes CUDA, and what a test of the device reads.
    "_cuda_init": lambda sim: sim.init(),
    "_cuda_getDeviceCount": lambda sim: sim.count(),
    "_cuda_isInBadFork": lambda sim: sim.in_bad_fork,
    "_cuda_getDevice": after_init(lambda sim: sim.device),
    "_cuda_setDevice": after_init(lambda sim, device: sim.select(device)),
    "_cuda_exchangeDevice": _exchange,
    "_cuda_maybeExchangeDevice": _exchange,
    "_cuda_canDeviceAccessPeer": after_init(lambda sim, device, peer: device != peer),
    "_cuda_hasPrimaryContext": probing("_cuda_hasPrimaryContext", lambda sim, _: sim.initialized),
    "_cuda_getArchFlags": lambda sim: sim.arch_flags,
    "_cuda_getCompiledVersion": harmless(12080),
    "_cuda_synchronize": _nothing,
    "_cuda_ipc_collect": _nothing,
    "_cuda_lock_mutex": harmless(None),
    "_cuda_unlock_mutex": harmless(None),
    "_cuda_get_sync_debug_mode": harmless(0),
    "_cuda_set_sync_debug_mode": harmless(None),
    # Streams are numbers here; the default stream is 0.
    "_cuda_getCurrentStream": after_init(lambda sim, device: sim.stream(device)),
    "_cuda_getDefaultStream": after_init(lambda sim, device: (0, device, 1)),
    "_cuda_getCurrentRawStream": after_init(lambda sim, device: sim.stream(device)[0]),
    "_cuda_getStreamFromExternal": after_init(lambda sim, pointer, device: (pointer, device, 1)),
    "_cuda_setStream": after_init(lambda sim, **stream: sim.set_stream(**stream)),
    # Memory: nothing is ever allocated, so there is nothing to count or to give back.
    "_cuda_emptyCache": harmless(None),
    "_host_emptyCache": harmless(None),
    "_cuda_clearCublasWorkspaces": harmless(None),
    "_cuda_cudaCachingAllocator_enable": harmless(None),
    "_cuda_cudaCachingAllocator_set_allocator_settings": harmless(None),
    "_cuda_getAllocatorBackend": harmless("native"),
    "_cuda_getMemoryFraction": after_init(harmless(1.0)),
    "_cuda_setMemoryFraction": _nothing,
    "_cuda_getMemoryMetadata": harmless(""),
    "_cuda_setMemoryMetadata": harmless(None),
    "_cuda_memoryStats": lambda sim, device: empty_memory_stats(),
    "_cuda_hostMemoryStats": lambda sim: {},
    "_cuda_memorySnapshot": lambda sim, *args: {"segments": [], "device_traces": []},
    "_cuda_resetAccumulatedMemoryStats": harmless(None),
    "_cuda_resetAccumulatedHostMemoryStats": harmless(None),
    "_cuda_resetPeakMemoryStats": harmless(None),
    "_cuda_resetPeakHostMemoryStats": harmless(None),
    "_cuda_attach_out_of_memory_observer": _nothing,
    "_cuda_isHistoryEnabled": probing("_cuda_isHistoryEnabled", harmless(False)),
    "_cuda_record_memory_history": _nothing,
    "_cuda_record_memory_history_legacy": _nothing,
    # Settings of libraries: kept by the process, unknown to the driver.
    "_cuda_get_conv_benchmark_empty_cache": harmless(False),
    "_cudnn_set_conv_benchmark_empty_cache": harmless(None),
    "_cuda_get_cudnn_benchmark_limit": harmless(10),
    "_cuda_set_cudnn_benchmark_limit": harmless(None),
    "_cuda_record_untuned_enable": harmless(None),
    "_cuda_record_untuned_is_enabled": harmless(False),
    "_cuda_tunableop_enable": harmless(None),
    "_cuda_tunableop_get_filename": harmless("tunableop_results.csv"),
    "_cuda_tunableop_get_max_tuning_duration": harmless(30),
    "_cuda_tunableop_get_max_tuning_iterations": harmless(100),
    "_cuda_tunableop_get_results": harmless(()),
    "_cuda_tunableop_get_rotating_buffer_size": harmless(0),
    "_cuda_tunableop_get_validators": harmless(()),
    "_cuda_tunableop_is_enabled": harmless(False),
    "_cuda_tunableop_read_file": harmless(False),
    "_cuda_tunableop_set_filename": harmless(None),
    "_cuda_tunableop_set_max_tuning_duration": harmless(None),
    "_cuda_tunableop_set_max_tuning_iterations": harmless(None),
    "_cuda_tunableop_set_numerical_check_tolerances": harmless(None),
    "_cuda_tunableop_set_rotating_buffer_size": harmless(None),
    "_cuda_tunableop_tuning_enable": harmless(None),
    "_cuda_tunableop_tuning_is_enabled": harmless(True),
    "_cuda_tunableop_write_file": harmless(False),
    "_cuda_tunableop_write_file_on_exit": harmless(None),
    "_nccl_version": harmless((2 << 32) | (27 << 16) | 3),
    "_nccl_version_suffix": harmless(b""),
    "_rocm_is_backward_pass": harmless(False),
    # Not of CUDA at all, but gone from newer builds.
    "_dispatch_is_main_interpreter": harmless(True),
    "read_vitals": harmless(""),
    "set_vital": harmless(False),
    "vitals_enabled": harmless(False),
}
"""Functions that answer, as ``answer(sim, *args, **kwargs)``."""

ACCELERATOR: dict[str, Answer] = {
    "_accelerator_getAccelerator": lambda sim: sim.torch.device("cuda"),
    "_get_accelerator": probing("_get_accelerator", lambda sim, *_: sim.torch.device("cuda")),
    "_accelerator_getDeviceIndex": after_init(lambda sim: sim.device),
    "_accelerator_setDeviceIndex": lambda sim, device: _select(sim, device),
    "_accelerator_exchangeDevice": _exchange,
    "_accelerator_maybeExchangeDevice": _exchange,
    "_accelerator_getStream": after_init(lambda sim, device: sim.torch.cuda.current_stream(device)),
    "_accelerator_setStream": after_init(lambda sim, stream: sim.torch.cuda.set_stream(stream)),
    "_accelerator_synchronizeDevice": harmless(None),
    "_accelerator_isAllocatorInitialized": harmless(False),
    "_accelerator_getDeviceCapability": after_init(lambda sim, device: sim.dtypes),
    "_accelerator_getMemoryInfo": after_init(lambda sim, device: sim.memory),
}
"""The same device under its general name; these exist on every build."""


def functions() -> dict[str, Answer]:
    """Every function of the tables, those that refuse included."""

    def refusing(name: str) -> Answer:
        return lambda sim, *args, **kwargs: _refuse(sim, name)

    return {**{name: refusing(name) for name in REFUSED}, **FUNCTIONS, **ACCELERATOR}
