"""A saved model, for tests of weights files."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

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
