"""Weights files: names and shapes in them, reading with words for all that is wrong, writing.

The names are Hugging Face's, so that other programs read these files and the engine reads theirs;
projections that the engine fuses are stacked and cut here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from sample_engine.errors import WeightsError
from sample_engine.model.config import LlamaConfig
from sample_engine.model.shards import Shard

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
    every, name = slice(None), part.name.removesuffix(".weight").rpartition(".")[2]
    if name in ("embed_tokens", "lm_head"):
        rows = shard.vocabulary_of(config.vocab_size)
        more = shard.rows_of(config.vocab_size) - (rows.stop - rows.start)
        return part._replace(cut=(rows, every), more_rows=more)
    if name in ("k_proj", "v_proj"):
        heads, size = shard.kv_heads_of(config.num_key_value_heads), config.head_dim
        return part._replace(cut=(slice(heads.start * size, heads.stop * size), every))
    if name in ("q_proj", "gate_proj", "up_proj"):
        return part._replace(cut=(shard.part_of(part.shape[0]), every))
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
    from safetensors import SafetensorError, safe_open

    _must_exist(path)
    try:
        with safe_open(path, framework="pt") as file:
            return dict(file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise WeightsError(_corrupt(path, error)) from error


def read(path: Path, parts: Parts, place: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """Return each parameter from a file; ``place`` moves a tensor to its device and dtype.

    Names and shapes are checked before anything is moved. Raises :class:`WeightsError` where the
    file is missing, corrupt, holds something else or numbers that are not finite.
    """
    from safetensors import SafetensorError, safe_open

    _must_exist(path)
    try:
        with safe_open(path, framework="pt") as file:
            found = {name: tuple(file.get_slice(name).get_shape()) for name in list(file.keys())}
            wrong = _differences(
                found, {part.name: part.shape for row in parts.values() for part in row}
            )
            if wrong:
                raise WeightsError(
                    f"{str(path)!r} does not hold the weights that its configuration describes:\n"
                    + "\n".join(f"  {line}" for line in wrong)
                    + "\nUse the config.json that was saved with these weights."
                )

            def placed(part: Part) -> Tensor:
                if part.cut:
                    tensor = file.get_slice(part.name)[part.cut]
                else:
                    tensor = file.get_tensor(part.name)
                tensor = place(_floating(path, part, tensor))
                return part.filled_up(_finite(path, part, tensor))

            return {name: torch.cat([placed(part) for part in row]) for name, row in parts.items()}
    except (SafetensorError, OSError) as error:
        raise WeightsError(_corrupt(path, error)) from error


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
            lines.append(f"{words}: {', '.join(names[:4])}{more}.")
    lines.extend(
        f"{name} has the shape {list(found[name])}, not {list(shape)}."
        for name, shape in expected.items()
        if name in found and found[name] != shape
    )
    return lines[:10]


def _floating(path: Path, part: Part, tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point():
        raise WeightsError(
            f"{part.name} in {str(path)!r} is of {tensor.dtype}: quantized weights are not read. "
            "Save them as bfloat16, float16 or float32."
        )
    return tensor


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


def _must_exist(path: Path) -> None:
    if path.is_file():
        return
    sharded = path.with_name(path.name + ".index.json")
    hint = (
        f"{sharded.name!r} is there: weights in several files are not read, join them in one."
        if sharded.is_file()
        else "Save the weights there, or ask for random ones with load_format='dummy'."
    )
    raise WeightsError(f"There is no weights file {str(path)!r}. {hint}")


def _corrupt(path: Path, error: Exception) -> str:
    return (
        f"{str(path)!r} cannot be read as safetensors: {error}. It may be cut short or another "
        "kind of file: fetch or save it anew."
    )
