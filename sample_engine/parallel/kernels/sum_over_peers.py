"""The kernel that sums tokens over ranks: each rank writes its terms into the others' memory.

A program writes a group of tokens into the inboxes of the others, raises a flag there, waits for
the flags of the same group in its own memory, and adds up what has come, while its next group is on
the way.

An inbox has two halves, which sums use by turns: a rank writes to a half again two sums later. It
has seen the flags of the sum in between then, which another rank raises when it is done with the
one before.

The sum is added to the residual stream and normed in the same kernel. All ranks add in the order of
their numbers, so they get the same bits; what is rounded on the way is what torch rounds.

Shapes::

    P  ranks
    T  tokens, C numbers each
    M  tokens that an inbox has room for; of G tokens a group
"""

from __future__ import annotations

import dataclasses

import torch
import triton.language as tl

from sample_engine.kernels.common import jit, next_power_of_2
from sample_engine.kernels.overlap import launch_early, wait_for_inputs

__all__ = ["Inboxes", "sum_over_peers"]

_PER_WARP = 256  # features
_MOST_WARPS = 16
_GROUP = 4  # tokens of a group where there are many
# A program waits for its like on other ranks, so all of a launch should be resident at a time. With
# two of them on a processor one is on the link while the other adds up.
_PROGRAMS_PER_PROCESSOR = 2


@dataclasses.dataclass(frozen=True)
class Inboxes:
    """Where each rank takes the terms of the others, and how far the sums are.

    All of it is zeros at the start, and one rank's pointers name the same places as another's.
    """

    rank: int
    size: int  # P
    columns: int  # C
    room: int  # M
    pointers: torch.Tensor  # [P] int64: of each rank, [2, P - 1, M, C]
    flags: torch.Tensor  # [P] int64: of each rank, [P, M] int64
    count: torch.Tensor  # [2] int64, this rank's own: sums so far, and programs that have ended
    processors: int  # of this rank's GPU


@jit
def _send(
    group: tl.tensor,
    x_ptr: tl.tensor,
    inboxes_ptr: tl.tensor,
    flags_ptr: tl.tensor,
    half: tl.tensor,
    number: tl.tensor,
    num_tokens: tl.tensor,
    room: tl.tensor,
    x_stride: tl.tensor,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    SIZE: tl.constexpr,
    SIZE_PAD: tl.constexpr,
    GROUP: tl.constexpr,
) -> None:
    """Write a group of tokens to all other ranks, and tell them."""
    at = tl.arange(0, SIZE_PAD)
    for index in tl.static_range(GROUP):
        token = (group * GROUP + index).to(tl.int64)
        given = at < tl.where(token < num_tokens, SIZE, 0)
        x = tl.load(x_ptr + token * x_stride + at, mask=given)
        for peer in tl.static_range(RANKS):
            if peer != RANK:
                begin = tl.load(inboxes_ptr + peer).to(tl.pointer_type(x_ptr.dtype.element_ty))
                sender = RANK - (1 if peer < RANK else 0)
                row = (half * (RANKS - 1) + sender) * room + token
                tl.store(begin + row * SIZE + at, x, mask=given)
    tl.debug_barrier()  # all threads have written before one of them tells
    for peer in tl.static_range(RANKS):
        if peer != RANK:
            begin = tl.load(flags_ptr + peer).to(tl.pointer_type(tl.int64))
            tl.atomic_xchg(begin + RANK * room + group, number, sem="release", scope="sys")


@jit
def _sum_over_peers_kernel(
    x_ptr: tl.tensor,  # [T, C], this rank's term
    residual_ptr: tl.tensor,  # [T, C], read with ADD alone
    weight_ptr: tl.tensor,  # [C], read with NORM alone
    total_ptr: tl.tensor,  # [T, C]
    normed_ptr: tl.tensor,  # [T, C], written with NORM alone
    inboxes_ptr: tl.tensor,  # [P] int64
    flags_ptr: tl.tensor,  # [P] int64
    count_ptr: tl.tensor,  # [2] int64
    num_tokens: tl.tensor,
    room: tl.tensor,
    x_stride: tl.tensor,
    residual_stride: tl.tensor,
    eps: tl.tensor,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    SIZE: tl.constexpr,
    SIZE_PAD: tl.constexpr,
    GROUP: tl.constexpr,
    ADD: tl.constexpr,
    NORM: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    launch_early(OVERLAP)
    at = tl.arange(0, SIZE_PAD)
    ok = at < SIZE
    programs = tl.num_programs(0)
    first = tl.program_id(0)
    groups = tl.cdiv(num_tokens, GROUP)
    if NORM:
        weight = tl.load(weight_ptr + at, mask=ok, other=0.0).to(tl.float32)
    wait_for_inputs(OVERLAP)
    number = tl.load(count_ptr, volatile=True) + 1  # of this sum, on all ranks
    half = number % 2
    own_inbox = tl.load(inboxes_ptr + RANK).to(tl.pointer_type(x_ptr.dtype.element_ty))
    own_flags = tl.load(flags_ptr + RANK).to(tl.pointer_type(tl.int64))
    _send(
        first,
        x_ptr,
        inboxes_ptr,
        flags_ptr,
        half,
        number,
        num_tokens,
        room,
        x_stride,
        RANK,
        RANKS,
        SIZE,
        SIZE_PAD,
        GROUP,
    )
    group = first
    while group < groups:
        if group + programs < groups:  # on its way while the group before it is added up
            _send(
                group + programs,
                x_ptr,
                inboxes_ptr,
                flags_ptr,
                half,
                number,
                num_tokens,
                room,
                x_stride,
                RANK,
                RANKS,
                SIZE,
                SIZE_PAD,
                GROUP,
            )
        for peer in tl.static_range(RANKS):
            if peer != RANK:
                flag = own_flags + peer * room + group
                while tl.atomic_add(flag, 0, sem="acquire", scope="sys") < number:
                    pass
        for index in tl.static_range(GROUP):
            token = (group * GROUP + index).to(tl.int64)
            given = at < tl.where(token < num_tokens, SIZE, 0)
            total = tl.zeros([SIZE_PAD], tl.float32)
            for peer in tl.static_range(RANKS):
                if peer == RANK:
                    term = tl.load(x_ptr + token * x_stride + at, mask=given, other=0.0)
                else:
                    sender = peer - (1 if peer > RANK else 0)
                    row = (half * (RANKS - 1) + sender) * room + token
                    inbox = own_inbox + row * SIZE + at
                    term = tl.load(inbox, mask=given, other=0.0, cache_modifier=".cg")
                total += term.to(tl.float32)
            result = total.to(total_ptr.dtype.element_ty)
            if ADD:
                from_ptr = residual_ptr + token * residual_stride + at
                residual = tl.load(from_ptr, mask=given, other=0.0).to(tl.float32)
                result = (result.to(tl.float32) + residual).to(total_ptr.dtype.element_ty)
            tl.store(total_ptr + token * SIZE + at, result, mask=given)
            if NORM:
                wide = result.to(tl.float32)
                scale = tl.rsqrt(tl.sum(wide * wide, 0) / SIZE + eps)
                normed = (wide * scale).to(normed_ptr.dtype.element_ty).to(tl.float32) * weight
                into_ptr = normed_ptr + token * SIZE + at
                tl.store(into_ptr, normed.to(normed_ptr.dtype.element_ty), mask=given)
        group += programs
    tl.debug_barrier()
    if tl.atomic_add(count_ptr + 1, 1, sem="acq_rel", scope="gpu") == programs - 1:
        tl.store(count_ptr + 1, 0)  # the last program of this launch: all have read the number
        tl.store(count_ptr, number)


def sum_over_peers(
    inboxes: Inboxes,
    x: torch.Tensor,  # [T, C], this rank's term; T up to M
    residual: torch.Tensor | None = None,  # [T, C]
    norm: tuple[torch.Tensor, float] | None = None,  # weight [C] and epsilon
    *,
    overlap: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:  # [T, C], [T, C]
    """The sum over ranks plus ``residual``, and with ``norm`` that normed; else twice the same."""
    num_tokens, size = x.shape
    assert num_tokens <= inboxes.room, "an inbox has no room for so many tokens"
    assert size == inboxes.columns, "an inbox is made for tokens of one size"
    assert x.stride(1) == 1, "rows have to be contiguous"
    total = torch.empty((num_tokens, size), dtype=x.dtype, device=x.device)
    normed = torch.empty_like(total) if norm is not None else total
    if not num_tokens:
        return total, normed
    most = inboxes.processors * _PROGRAMS_PER_PROCESSOR
    group = 1 if num_tokens <= most else _GROUP
    padded = next_power_of_2(size)
    weight, eps = (x, 0.0) if norm is None else norm
    _sum_over_peers_kernel[(min(most, -(-num_tokens // group)),)](
        x,
        x if residual is None else residual,
        weight,
        total,
        normed,
        inboxes.pointers,
        inboxes.flags,
        inboxes.count,
        num_tokens,
        inboxes.room,
        x.stride(0),
        x.stride(0) if residual is None else residual.stride(0),
        eps,
        RANK=inboxes.rank,
        RANKS=inboxes.size,
        SIZE=size,
        SIZE_PAD=padded,
        GROUP=group,
        ADD=residual is not None,
        NORM=norm is not None,
        OVERLAP=overlap,
        num_warps=min(_MOST_WARPS, max(1, padded // _PER_WARP)),
        launch_pdl=overlap,
    )
    return total, normed
