"""FlashAttention-3 as vLLM builds it, which reads pages.

Its library is found in an installed vLLM and loaded alone: the rest of vLLM is not wanted here.
"""

from __future__ import annotations

import torch

from sample_engine.attention.flash_libraries import FlashLibrary, find_in_package

__all__ = ["FlashAttention3OfVllm"]

_LIBRARY = "vllm_flash_attn/_vllm_fa3_C.abi3.so"


class FlashAttention3OfVllm(FlashLibrary):
    """Hopper's kernels over pages of any size."""

    module = "FlashAttention-3 of vLLM"
    package = "vllm"
    paged = True
    dtypes = (torch.float16, torch.bfloat16)
    capabilities = (9,)

    def __init__(self) -> None:
        found = find_in_package("vllm", _LIBRARY)
        if found is None:
            raise ModuleNotFoundError(f"no vLLM with {_LIBRARY} is installed")
        torch.ops.load_library(str(found))

    @classmethod
    def is_installed(cls) -> bool:
        """Whether there is a vLLM with this library."""
        return find_in_package("vllm", _LIBRARY) is not None

    def attend(
        self,
        query: torch.Tensor,  # [T', H, D]
        key: torch.Tensor,  # [B, P, K, D]
        value: torch.Tensor,  # [B, P, K, D]
        query_start: torch.Tensor,  # [R' + 1] int32
        kv: torch.Tensor,  # [R'] int32
        block_table: torch.Tensor | None,  # [R', max_blocks] int32
        max_query_len: int,
        max_seq_len: int,
        scale: float,
    ) -> torch.Tensor:
        """Over pages."""
        nothing = None
        out: torch.Tensor = torch.ops._vllm_fa3_C.fwd(
            query, key, value,
            nothing, nothing,  # new keys and values
            nothing,  # a second query
            nothing,  # where the result goes
            query_start,
            nothing, nothing,  # where keys start: there are lengths
            nothing, kv,  # lengths of queries, and of keys
            max_query_len, max_seq_len,
            block_table,
            nothing, nothing,  # which text of a cache, padding on its left
            nothing, nothing, nothing,  # of rotation
            nothing, nothing, nothing,  # scales of FP8
            scale,
            True,  # causal
            -1, -1,  # no window
            0.0,  # no softcap
            True,  # of rotation
            nothing,  # a plan
            0,  # splits: by its own rule
            nothing,  # whether heads are packed: likewise
            0,  # all processors
            nothing,  # sinks
            1, 0, nothing,  # one rank
        )[0]  # fmt: skip
        return out
