"""The properties of the GPUs that torch's present face shows.

The numbers are those that the phantom driver gives for the same face.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True)
class DeviceProperties:
    """What ``torch.cuda.get_device_properties`` gives; sizes in bytes, clocks in kHz."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int
    L2_cache_size: int
    shared_memory_per_block_optin: int
    shared_memory_per_multiprocessor: int
    clock_rate: int
    memory_clock_rate: int
    memory_bus_width: int
    max_threads_per_multi_processor: int = 2048
    max_threads_per_block: int = 1024
    regs_per_multiprocessor: int = 65536
    shared_memory_per_block: int = 48 * _KIB
    warp_size: int = 32
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    gcnArchName: str = ""
    uuid: str = "63756461-666f-726b-0000-000000000000"
    pci_bus_id: int = 1
    pci_device_id: int = 0
    pci_domain_id: int = 0


@dataclass(frozen=True)
class _Model:
    """A typical card of one capability: a row of the phantom driver's table (phantom_face.c)."""

    capability: int
    name: str
    multiprocessors: int
    shared_multiprocessor: int
    shared_optin: int
    threads: int
    l2: int
    clock: int
    memory_clock: int
    bus: int
    memory: int


_MODELS = (
    _Model(70, "V100-SXM2-32GB", 80, 96, 96, 2048, 6, 1530000, 877000, 4096, 32),
    _Model(75, "T4", 40, 64, 64, 1024, 4, 1590000, 5001000, 256, 15),
    _Model(80, "A100-SXM4-80GB", 108, 164, 163, 2048, 40, 1410000, 1593000, 5120, 80),
    _Model(86, "A10", 72, 100, 99, 1536, 6, 1695000, 6251000, 384, 22),
    _Model(89, "L40S", 142, 100, 99, 1536, 96, 2520000, 9001000, 384, 45),
    _Model(90, "H100 80GB HBM3", 132, 228, 227, 2048, 50, 1980000, 2619000, 5120, 80),
    _Model(100, "B200", 148, 228, 227, 2048, 126, 1965000, 3996000, 8192, 179),
    _Model(103, "B300 SXM6 AC", 148, 228, 227, 2048, 126, 1920000, 3996000, 8192, 268),
    _Model(120, "RTX PRO 6000 Blackwell", 188, 100, 99, 1536, 128, 2617000, 14001000, 512, 95),
)


def properties_of(capability: tuple[int, int]) -> DeviceProperties:
    """Give the properties of a typical card: the last model that is not above *capability*."""
    number = 10 * capability[0] + capability[1]
    model = [m for m in _MODELS if m.capability <= number or m is _MODELS[0]][-1]
    return DeviceProperties(
        name=f"NVIDIA {model.name}",
        major=capability[0],
        minor=capability[1],
        total_memory=model.memory * _GIB,
        multi_processor_count=model.multiprocessors,
        L2_cache_size=model.l2 * _MIB,
        shared_memory_per_block_optin=model.shared_optin * _KIB,
        shared_memory_per_multiprocessor=model.shared_multiprocessor * _KIB,
        clock_rate=model.clock,
        memory_clock_rate=model.memory_clock,
        memory_bus_width=model.bus,
        max_threads_per_multi_processor=model.threads,
    )


def uuid_of(device: int) -> str:
    """Give the name under which NVML knows a device: the bytes "cudafork" and its number."""
    return f"GPU-63756461-666f-726b-0000-{device:012x}"


def empty_memory_stats() -> dict[str, Any]:
    """Give the statistics of an allocator that was never asked, nested as ``torch._C`` has them."""

    def none() -> dict[str, int]:
        return dict.fromkeys(("current", "peak", "allocated", "freed"), 0)

    units = "allocation segment active inactive_split"
    sizes = "allocated_bytes reserved_bytes active_bytes inactive_split_bytes requested_bytes"
    pools = ("all", "small_pool", "large_pool")
    stats: dict[str, Any] = {
        name: {pool: none() for pool in pools} for name in (units + " " + sizes).split()
    }
    stats |= {"oversize_allocations": none(), "oversize_segments": none()}
    counts = "num_alloc_retries num_ooms num_sync_all_streams num_device_alloc num_device_free"
    return stats | dict.fromkeys(counts.split(), 0) | {"max_split_size": -1}
