"""A saved model, for tests of weights files."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from sample_engine.model import checkpoint
from sample_engine.model.config import LlamaConfig
from sample_engine.model.eagle_head import EagleConfig, EagleHead
from tests.engine.support.model import SMALL, random_llama


def save(folder: Path, config: LlamaConfig = SMALL) -> Path:
    """Write a random model and its head to a folder."""
    folder.mkdir(exist_ok=True)
    values = dataclasses.asdict(config) | {"model_type": "llama"}
    (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
    model = random_llama(config)
    parts = checkpoint.llama_parts(config, model)
    checkpoint.write(folder / "model.safetensors", model, parts, {})
    head = EagleHead(EagleConfig.for_target(config))
    metadata = {"config": head.config.to_json()}
    checkpoint.write(folder / "eagle.safetensors", head, checkpoint.plain_parts(head), metadata)
    return folder


def cut_head(folder: Path, token_ids: Tensor, *, t2d: bool = True) -> Path:
    """Leave the head of a folder these tokens to guess among, as EAGLE-3's files say it."""
    path = folder / "eagle.safetensors"
    config = EagleConfig.from_json(checkpoint.metadata_of(path)["config"])
    weights = load_file(path)
    weights["lm_head.weight"] = weights["lm_head.weight"][token_ids].contiguous()
    weights["d2t"] = token_ids - torch.arange(len(token_ids))
    if t2d:
        there = torch.zeros(config.layer.vocab_size, dtype=torch.bool)
        weights["t2d"] = there.index_fill(0, token_ids, True)
    config = dataclasses.replace(config, draft_vocab_size=len(token_ids))
    save_file(weights, path, metadata={"config": config.to_json()})
    return folder
