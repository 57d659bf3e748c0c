"""The FlashAttention libraries: where one is found, what it takes, how it is called.

They are looked for in the file system alone: importing one may initialize CUDA (``flash_attn.cute``
does, by way of ``tvm_ffi``).
"""

from __future__ import annotations

import abc
import importlib
import importlib.util
from pathlib import Path
from typing import ClassVar

import torch

from sample_engine.attention.interface import AttentionSpec

__all__ = ["FlashLibrary", "find_in_package", "find_library"]

_SIXTEEN_BITS = (torch.float16, torch.bfloat16)


class FlashLibrary(abc.ABC):
    """One library. ``paged``: whether it reads keys and values from pages."""

    module: ClassVar[str]
    package: ClassVar[str]  # to be installed
    paged: ClassVar[bool]
    dtypes: ClassVar[tuple[torch.dtype, ...]]
    capabilities: ClassVar[tuple[int, ...]]  # the major numbers of compute capabilities it is for

    def __init__(self) -> None:
        self._module = importlib.import_module(self.module)

    @classmethod
    def why_not(cls, spec: AttentionSpec, capability: tuple[int, int] | None) -> str | None:
        """Why it cannot compute ``spec``; None: it can."""
        if not cls.is_installed():
            return f"{cls.module} is not installed (pip install {cls.package})"
        if capability is not None and capability[0] not in cls.capabilities:
            return f"{cls.module} is not made for compute capability {capability[0]}.x"
        if spec.dtype not in cls.dtypes:
            names = ", ".join(str(each).removeprefix("torch.") for each in cls.dtypes)
            return f"{cls.module} computes in {names}, not in {str(spec.dtype)[6:]}"
        if spec.head_dim % 8 or spec.head_dim > 256:
            return f"{cls.module} needs head_dim to be a multiple of 8 up to 256: {spec.head_dim}"
        return None

    @classmethod
    def is_installed(cls) -> bool:
        """Whether it can be found, without importing anything of it."""
        return importlib.util.find_spec(cls.module) is not None

    @abc.abstractmethod
    def attend(
        self,
        query: torch.Tensor,  # [T', H, D]
        key: torch.Tensor,  # [S, K, D], or pages [B, P, K, D]
        value: torch.Tensor,
        query_start: torch.Tensor,  # [R' + 1] int32
        kv: torch.Tensor,  # [R' + 1] int32: where keys start; with pages [R']: how many there are
        block_table: torch.Tensor | None,  # [R', max_blocks] int32
        max_query_len: int,
        max_seq_len: int,
        scale: float,
    ) -> torch.Tensor:
        """Causal attention of packed sequences: [T', H, D]."""


class FlashAttention4(FlashLibrary):
    """``flash_attn.cute``: written in CuTe's DSL, compiled on first use; reads pages."""

    module = "flash_attn.cute"
    package = "flash-attn-4"
    paged = True
    dtypes = _SIXTEEN_BITS
    capabilities = (9, 10, 11)

    @classmethod
    def is_installed(cls) -> bool:
        """Looks into the folders of ``flash_attn``, which another library may own."""
        return find_in_package("flash_attn", "cute/interface.py") is not None

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
        out = self._module.flash_attn_varlen_func(
            query,
            key,
            value,
            cu_seqlens_q=query_start,
            seqused_k=kv,
            max_seqlen_q=max_query_len,
            max_seqlen_k=max_seq_len,
            page_table=block_table,
            softmax_scale=scale,
            causal=True,
        )
        result: torch.Tensor = out[0] if isinstance(out, tuple) else out
        return result


class _Contiguous(FlashLibrary):
    """Those that cannot read pages as they are here: keys and values are gathered for them."""

    paged = False

    def attend(
        self,
        query: torch.Tensor,  # [T', H, D]
        key: torch.Tensor,  # [S, K, D]
        value: torch.Tensor,  # [S, K, D]
        query_start: torch.Tensor,  # [R' + 1] int32
        kv: torch.Tensor,  # [R' + 1] int32
        block_table: torch.Tensor | None,
        max_query_len: int,
        max_seq_len: int,
        scale: float,
    ) -> torch.Tensor:
        """Over contiguous keys and values."""
        result: torch.Tensor = self._module.flash_attn_varlen_func(
            query,
            key,
            value,
            query_start,
            kv,
            max_query_len,
            max_seq_len,
            softmax_scale=scale,
            causal=True,
        )
        return result


class FlashAttention3(_Contiguous):
    """``fa3_fwd_interface``: for Hopper; the published build has neither pages nor float16."""

    module = "fa3_fwd_interface"
    package = "fa3-fwd"
    dtypes = (torch.bfloat16,)
    capabilities = (9,)


class FlashAttention2(_Contiguous):
    """``flash_attn``: its pages hold a multiple of 256 tokens, so ours are gathered for it."""

    module = "flash_attn"
    package = "flash-attn"
    dtypes = _SIXTEEN_BITS
    capabilities = (8, 9, 10, 11, 12)

    @classmethod
    def is_installed(cls) -> bool:
        """Looks into the folders of ``flash_attn``, which another library may own."""
        return find_in_package("flash_attn", "flash_attn_interface.py") is not None


# The one that reads pages comes first: it needs no copy of them.
_LIBRARIES: tuple[type[FlashLibrary], ...] = (FlashAttention4, FlashAttention3, FlashAttention2)


def find_library(
    spec: AttentionSpec, capability: tuple[int, int] | None
) -> tuple[type[FlashLibrary] | None, str]:
    """The first library that can compute ``spec``; else why none of them can."""
    reasons = []
    for library in _LIBRARIES:
        reason = library.why_not(spec, capability)
        if reason is None:
            return library, ""
        reasons.append(reason)
    return None, ", ".join(reasons)


def find_in_package(package: str, file: str) -> Path | None:
    """A file of an installed package, which is not imported; ``None``: it has none, or is not."""
    found = importlib.util.find_spec(package)
    folders = (found.submodule_search_locations or ()) if found is not None else ()
    paths = (Path(folder) / file for folder in folders)
    return next((path for path in paths if path.is_file()), None)
