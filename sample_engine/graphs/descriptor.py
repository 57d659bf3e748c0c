"""What a graph is known by, and the choice of a graph for a batch. Pure: no tensor, no device.

A FULL graph holds a whole forward pass, attention included, of so many requests with so many
queries each. PIECEWISE graphs hold what lies between two attentions, of so many tokens of whichever
requests. A batch that is smaller is filled up; one that fits no graph runs without.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence

from sample_engine.config import CUDAGraphMode

__all__ = [
    "BatchExecutionDescriptor",
    "capture_descriptors",
    "capture_order",
    "capture_sizes",
    "dispatch",
    "query_len_of",
    "wanted_modes",
]

_LARGEST_SIZE = 512  # tokens; beyond, the time to launch kernels is small next to theirs


@dataclasses.dataclass(frozen=True)
class BatchExecutionDescriptor:
    """How a batch is run, and the size that it is filled up to.

    ``num_reqs`` is None where requests are not filled up (PIECEWISE). ``uniform_query_len`` is that
    of a FULL graph's requests: a request may have fewer, since how many is read on the device.
    """

    cg_mode: CUDAGraphMode
    num_tokens: int
    num_reqs: int | None = None
    uniform_query_len: int | None = None

    def __str__(self) -> str:
        tokens = f"{self.num_tokens} token{'s' if self.num_tokens != 1 else ''}"
        if self.num_reqs is None:
            return f"{self.cg_mode.value}, {tokens}"
        requests = f"{self.num_reqs} request{'s' if self.num_reqs != 1 else ''}"
        return f"{self.cg_mode.value}, {requests}, {tokens}"


def wanted_modes(mode: CUDAGraphMode) -> tuple[CUDAGraphMode, ...]:
    """Which graphs a setting asks for, in the order in which they are captured."""
    parts = mode.value.split("_AND_")
    return tuple(
        each for each in (CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL) if each.value in parts
    )


def capture_sizes(largest: int = _LARGEST_SIZE) -> tuple[int, ...]:
    """The usual sizes: 1, 2, 4, 8, 16, 24, 32, 48, 64, ...: from 16 on little is filling.

    ``largest`` itself is one of them.
    """
    sizes = {1, 2, 4, 8, largest}
    power = 16
    while power <= largest:
        sizes |= {power, power + power // 2}
        power *= 2
    return tuple(sorted(size for size in sizes if size <= largest))


def capture_descriptors(
    mode: CUDAGraphMode,
    *,
    max_num_reqs: int,
    max_num_tokens: int,
    query_lens: Iterable[int] = (1,),
    sizes: Sequence[int] | None = None,
) -> tuple[BatchExecutionDescriptor, ...]:
    """What is to be captured: PIECEWISE by tokens, FULL by requests for each of ``query_lens``.

    ``sizes`` are the numbers of tokens, and of requests; None: the usual ones up to the largest
    batch. What no batch can reach is left out.
    """
    modes = wanted_modes(mode)
    found: set[BatchExecutionDescriptor] = set()
    if CUDAGraphMode.PIECEWISE in modes:
        for size in sizes or capture_sizes(min(max_num_tokens, _LARGEST_SIZE)):
            if size <= max_num_tokens:
                found.add(BatchExecutionDescriptor(CUDAGraphMode.PIECEWISE, size))
    if CUDAGraphMode.FULL in modes:
        for query_len in set(query_lens):
            most = min(max_num_reqs, max_num_tokens // query_len)
            for size in sizes or capture_sizes(most):
                if size <= most:
                    found.add(_full(size, query_len))
    return capture_order(found)


def _full(num_reqs: int, query_len: int) -> BatchExecutionDescriptor:
    return BatchExecutionDescriptor(CUDAGraphMode.FULL, num_reqs * query_len, num_reqs, query_len)


def capture_order(
    descs: Iterable[BatchExecutionDescriptor],
) -> tuple[BatchExecutionDescriptor, ...]:
    """PIECEWISE then FULL, the largest first: smaller ones fit into the memory of larger ones."""
    return tuple(
        sorted(
            descs,
            key=lambda desc: (
                desc.cg_mode is CUDAGraphMode.FULL,
                -desc.num_tokens,
                -(desc.num_reqs or 0),
                -(desc.uniform_query_len or 0),
            ),
        )
    )


def query_len_of(counts: Sequence[int], query_lens: Iterable[int]) -> int | None:
    """The smallest of ``query_lens`` that no request of a batch exceeds; None: there is none.

    ``counts`` are the tokens of each request in this step. A request may have fewer.
    """
    most = max(counts, default=0)
    return min((each for each in query_lens if most <= each), default=None)


def dispatch(
    captured: Collection[BatchExecutionDescriptor],
    num_reqs: int,
    num_tokens: int,
    uniform_query_len: int | None,
) -> BatchExecutionDescriptor:
    """How to run a batch: the smallest graph that fits, FULL before PIECEWISE, else none.

    FULL only for a batch whose requests have at most ``uniform_query_len`` queries each. The answer
    is one of ``captured``, or has the mode NONE and the batch's own size.
    """
    best: BatchExecutionDescriptor | None = None
    for desc in captured:
        if _fits(desc, num_reqs, num_tokens, uniform_query_len) and (
            best is None or _rank(desc) < _rank(best)
        ):
            best = desc
    if best is not None:
        return best
    return BatchExecutionDescriptor(CUDAGraphMode.NONE, num_tokens, num_reqs)


def _fits(
    desc: BatchExecutionDescriptor, num_reqs: int, num_tokens: int, query_len: int | None
) -> bool:
    if desc.cg_mode is CUDAGraphMode.NONE or num_tokens > desc.num_tokens:
        return False
    if desc.cg_mode is CUDAGraphMode.PIECEWISE:
        return True
    if query_len is None or query_len != desc.uniform_query_len or desc.num_reqs is None:
        return False
    return num_reqs <= desc.num_reqs


def _rank(desc: BatchExecutionDescriptor) -> tuple[bool, int]:
    return desc.cg_mode is not CUDAGraphMode.FULL, desc.num_tokens
