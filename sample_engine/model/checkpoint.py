"""Weights files: names and shapes in them, reading with words for all that is wrong, writing.

The names are Hugging Face's, so that other programs read these files and the engine reads theirs;
projections that the engine fuses are stacked and cut here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor, nn

from sample_engine.errors import WeightsError
from sample_engine.model.config import LlamaConfig
from sample_engine.model.shards import Shard
from sample_engine.model.weight_files import WeightFiles, opened, shown

__all__ = [
    "Part",
    "Parts",
    "llama_parts",
    "metadata_of",
    "parts_of_shard",
    "plain_parts",
    "read",
    "write",
]


class Part(NamedTuple):
    """A tensor in a file. A parameter of a module is the parts of a list, stacked by rows.

    Of a model that is cut for several ranks, ``cut`` is what this rank takes of each dimension, and
    ``more_rows`` how many rows of zeros fill that up.
    """

    name: str
    shape: tuple[int, ...]
    cut: tuple[slice, ...] = ()
    more_rows: int = 0

    def piece_of(self, tensor: Tensor) -> Tensor:
        """Return what is taken of a tensor of ``shape``."""
        return tensor[self.cut] if self.cut else tensor

    def filled_up(self, piece: Tensor) -> Tensor:
        """Return a piece with its rows of zeros."""
        if not self.more_rows:
            return piece
        return torch.cat([piece, piece.new_zeros(self.more_rows, *piece.shape[1:])])


# Which parts each parameter of a module is made of.
Parts = Mapping[str, Sequence[Part]]


def llama_parts(config: LlamaConfig, module: nn.Module) -> Parts:
    """Return the parts of each parameter of a :class:`~sample_engine.model.llama.Llama`."""
    head = config.head_dim
    fused = {
        "self_attn.qkv_proj": {
            "self_attn.q_proj": config.num_attention_heads * head,
            "self_attn.k_proj": config.num_key_value_heads * head,
            "self_attn.v_proj": config.num_key_value_heads * head,
        },
        "mlp.gate_up_proj": {
            "mlp.gate_proj": config.intermediate_size,
            "mlp.up_proj": config.intermediate_size,
        },
    }
    parts = {}
    for name, parameter in module.named_parameters():
        prefix = "" if name.startswith("lm_head.") else "model."
        parts[name] = [Part(prefix + name, tuple(parameter.shape))]
        for whole, pieces in fused.items():
            if f".{whole}." in name:
                parts[name] = [
                    Part(prefix + name.replace(whole, piece), (rows, *parameter.shape[1:]))
                    for piece, rows in pieces.items()
                ]
    return parts


def parts_of_shard(parts: Parts, config: LlamaConfig, shard: Shard) -> Parts:
    """Return what a rank takes of each part of :func:`llama_parts`."""
    return {name: [_cut(part, config, shard) for part in row] for name, row in parts.items()}


def _cut(part: Part, config: LlamaConfig, shard: Shard) -> Part:
    every, name = slice(None), part.name.rpartition(".")[0].rpartition(".")[2]
    dims = len(part.shape)  # 1: a bias
    if name in ("embed_tokens", "lm_head"):
        rows = shard.vocabulary_of(config.vocab_size)
        more = shard.rows_of(config.vocab_size) - (rows.stop - rows.start)
        return part._replace(cut=(rows, every), more_rows=more)
    if name in ("k_proj", "v_proj"):
        heads, size = shard.kv_heads_of(config.num_key_value_heads), config.head_dim
        return part._replace(cut=(slice(heads.start * size, heads.stop * size), every)[:dims])
    if name in ("q_proj", "gate_proj", "up_proj"):
        return part._replace(cut=(shard.part_of(part.shape[0]), every)[:dims])
    if name in ("o_proj", "down_proj"):
        return part._replace(cut=(every, shard.part_of(part.shape[1])))
    return part  # a norm: all ranks have it


def plain_parts(module: nn.Module) -> Parts:
    """Return one part for each parameter, under the parameter's own name."""
    return {
        name: [Part(name, tuple(parameter.shape))] for name, parameter in module.named_parameters()
    }


def metadata_of(path: Path) -> dict[str, str]:
    """Return the texts that a weights file carries beside its tensors."""
    from safetensors import safe_open

    with opened(path), safe_open(path, framework="pt") as file:
        return dict(file.metadata() or {})


def read(
    path: Path,
    parts: Parts,
    place: Callable[[Tensor], Tensor],
    *,
    same: Mapping[str, str] = MappingProxyType({}),
    beside: Collection[str] = (),
) -> dict[str, Tensor]:
    """Return each parameter from a file or its shards; ``place`` moves a tensor to its device.

    Names, shapes and types are checked before anything is moved. ``same``: tensors that need not be
    there, but if they are must be equal to another one. ``beside``: tensors that may be there and
    are read elsewhere. Raises :class:`WeightsError` where a file is missing, corrupt, holds
    something else or numbers that are not finite.
    """
    with opened(path) as files:
        expected = {part.name: part.shape for row in parts.values() for part in row}
        found = {
            name: each.shape
            for name, each in files.found.items()
            if not _is_left_over(name) and name not in beside
        }
        optional = {name: expected[other] for name, other in same.items() if name in found}
        wrong = _differences(found, {**expected, **optional})
        wrong = wrong or files.wrong_dtypes([*expected, *optional])
        if wrong:
            raise WeightsError(
                f"{str(files.path)!r} does not hold the weights that its configuration describes:\n"
                + "\n".join(f"  {line}" for line in wrong)
                + "\nUse the config.json that was saved with these weights."
            )
        for name in optional:
            _must_be_equal(files, name, same[name])

        def placed(part: Part) -> Tensor:
            tensor = place(files.tensor(part.name, part.cut))
            return part.filled_up(_finite(files.path, part, tensor))

        return {name: torch.cat([placed(part) for part in row]) for name, row in parts.items()}


def _is_left_over(name: str) -> bool:
    """Whether a tensor is one that older programs saved and every program works out anew."""
    return name.endswith(("rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached"))


def _must_be_equal(files: WeightFiles, name: str, other: str) -> None:
    if not torch.equal(files.tensor(name), files.tensor(other)):
        raise WeightsError(
            f"{str(files.path)!r} has a {name} that differs from {other}, while the configuration "
            "says that they are one (tie_word_embeddings): one of the two is wrong."
        )


def write(path: Path, module: nn.Module, parts: Parts, metadata: Mapping[str, str]) -> None:
    """Write a module's parameters as bfloat16, through a file beside it: all of it or nothing."""
    from safetensors.torch import save_file

    tensors = {}
    for name, parameter in module.named_parameters():
        rows = [part.shape[0] for part in parts[name]]
        pieces = parameter.detach().to("cpu", torch.bfloat16).split(rows)
        for part, piece in zip(parts[name], pieces, strict=True):
            tensors[part.name] = piece.contiguous()
    beside = path.with_name(path.name + ".part")
    save_file(tensors, beside, metadata={"format": "pt", **metadata})
    beside.chmod(0o644)  # safetensors gives nobody else a right to read
    os.replace(beside, path)


def _differences(
    found: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]]
) -> list[str]:
    """What a file has too little, too much or of another shape, a line each."""
    lines = []
    for words, names in (
        ("missing", sorted(expected.keys() - found.keys())),
        ("unexpected", sorted(found.keys() - expected.keys())),
    ):
        if names:
            more = f" and {len(names) - 4} more" if len(names) > 4 else ""
            lines.append(f"{words}: {', '.join(map(shown, names[:4]))}{more}.")
    lines.extend(
        f"{name} has the shape {list(found[name])}, not {list(shape)}."
        for name, shape in expected.items()
        if name in found and found[name] != shape
    )
    return lines[:10]


def _finite(path: Path, part: Part, tensor: Tensor) -> Tensor:
    """Refuse NaN and infinity, on the device and in the precision in which they would compute.

    Least and most are found in one pass without another tensor, and a NaN is both of them.
    """
    if tensor.numel() and not all(bool(torch.isfinite(end)) for end in torch.aminmax(tensor)):
        raise WeightsError(
            f"{part.name} in {str(path)!r} holds numbers that are not finite in {tensor.dtype}: "
            "the weights were damaged when they were trained or saved, or need a dtype of a "
            "greater range. Save them anew."
        )
    return tensor
