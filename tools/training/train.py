"""Trains the tiny model: ``python -m tools.training.train --minutes 4 --out FOLDER``.

It writes ``config.json``, ``model.safetensors`` and ``train.json`` (what was done) to the folder.
The draft head comes later: ``train_eagle`` trains it on the finished model.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sample_engine.model import checkpoint
from sample_engine.model.llama import DecoderLayer, Llama
from sample_engine.model.loading import TINY_FOLDER, read_config
from tools.training import command, loop
from tools.training.attention import causal_windows, window_positions
from tools.training.corpus import Corpus, Windows, load_corpus
from tools.training.measure import bits_per_byte
from tools.training.optimizer import Optimizer, OptimizerSettings

__all__ = ["ModelSettings", "initialize", "main", "train"]

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """How the model is trained."""

    window: int = 2048  # tokens
    batch: int = 32  # windows in a step
    tests_share: float = 0.375  # of these, from CPython's tests
    dropout: float = 0.0  # on what layers add to the stream
    optimizer: OptimizerSettings = dataclasses.field(default_factory=OptimizerSettings)
    check_tokens: int = 1 << 17  # of the validation files, in a check
    seed: int = 0
    compile: bool = True  # on CUDA only


def train(
    model: Llama,
    corpus: Corpus,
    settings: ModelSettings,
    budget: loop.Budget,
    keep: Callable[[], None],
) -> loop.Outcome:
    """Train a model that lies on its device; ``keep`` is called where it is the best so far."""
    device = next(model.parameters()).device
    on_gpu = device.type == "cuda"
    batches = _batches(corpus, settings, device)
    validation = corpus.validation[: settings.check_tokens].to(device)
    handles = _add_dropout(model, settings.dropout)
    optimizer = Optimizer(model, settings.optimizer)

    def loss_of(windows: Tensor) -> Tensor:
        inputs, targets = windows[:, :-1], windows[:, 1:].flatten()
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=on_gpu):
            attend = causal_windows(settings.batch)
            hidden, _ = model(inputs.flatten(), window_positions(inputs), attend)
            logits = model.compute_logits(hidden)
        return F.cross_entropy(logits, targets)

    model.train()
    faster = loop.compiled(loss_of, batches(), wanted=settings.compile and on_gpu)
    model.zero_grad()

    def update(factor: float) -> Tensor:
        loss = faster(batches())
        loss.backward()
        optimizer.step(factor)
        return loss.detach()

    def check() -> float:
        model.eval()
        found = bits_per_byte(model, validation, window=settings.window, autocast=on_gpu)
        model.train()
        return found.value

    outcome = loop.run(
        update=update,
        check=check,
        keep=keep,
        budget=budget,
        tokens_per_step=settings.batch * settings.window,
    )
    for handle in handles:
        handle.remove()
    return outcome


def initialize(model: Llama, seed: int) -> None:
    """Give a model its first weights: layers begin by adding nothing to the stream."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            continue
        scale = 0.02 if "embed_tokens" in name else 0.7 * parameter.shape[1] ** -0.5
        with torch.no_grad():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    for layer in model.layers:
        nn.init.zeros_(layer.self_attn.o_proj.weight)
        nn.init.zeros_(layer.mlp.down_proj.weight)


def _batches(corpus: Corpus, settings: ModelSettings, device: torch.device) -> Callable[[], Tensor]:
    """Return what gives the next batch ``[batch, window + 1]``, from a corpus on the device."""
    size = settings.window + 1
    from_tests = round(settings.tests_share * settings.batch) if len(corpus.tests) > 2 * size else 0
    library = Windows(corpus.train.to(device), size, settings.seed)
    if not from_tests:
        return lambda: library.next(settings.batch)
    tests = Windows(corpus.tests.to(device), size, settings.seed + 1)
    return lambda: torch.cat((library.next(settings.batch - from_tests), tests.next(from_tests)))


def _add_dropout(model: Llama, share: float) -> list[Any]:
    """Let what layers add to the stream drop out in training; return what removes this again."""
    if not share:
        return []

    def drop(module: nn.Module, _: object, output: Tensor) -> Tensor:
        return F.dropout(output, share, module.training)

    layers: list[DecoderLayer] = list(model.layers)
    parts = [part for layer in layers for part in (layer.self_attn.o_proj, layer.mlp.down_proj)]
    return [part.register_forward_hook(drop) for part in parts]


def _parser() -> argparse.ArgumentParser:
    parser = command.parser("train", minutes=4.0)
    parser.add_argument("--out", type=Path, required=True, help="folder for the trained model")
    parser.add_argument("--window", type=int, default=ModelSettings.window)
    parser.add_argument("--batch", type=int, default=ModelSettings.batch)
    parser.add_argument("--dropout", type=float, default=ModelSettings.dropout)
    parser.add_argument("--weight-decay", type=float, default=OptimizerSettings.weight_decay)
    parser.add_argument("--tests-share", type=float, default=ModelSettings.tests_share)
    parser.add_argument("--check-tokens", type=int, default=ModelSettings.check_tokens)
    parser.add_argument("--seed", type=int, default=ModelSettings.seed)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Train from the command line."""
    options = _parser().parse_args(arguments)
    loop.set_up_logging()
    budget = command.budget_of(options)
    device = loop.pick_device(options.device)
    settings = ModelSettings(
        window=options.window,
        batch=options.batch,
        tests_share=options.tests_share,
        dropout=options.dropout,
        optimizer=OptimizerSettings(weight_decay=options.weight_decay),
        check_tokens=options.check_tokens,
        seed=options.seed,
        compile=not options.no_compile,
    )
    torch.manual_seed(settings.seed)
    corpus = load_corpus(options.source, options.max_bytes)
    _log.info("corpus: %s", json.dumps(corpus.facts))
    config = read_config("tiny")
    model = Llama(config)
    initialize(model, settings.seed)
    model.to(device)
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(TINY_FOLDER / "config.json", out / "config.json")
    parts = checkpoint.llama_parts(config, model)
    outcome = train(
        *(model, corpus, settings, budget),
        keep=lambda: checkpoint.write(out / "model.safetensors", model, parts, {}),
    )
    facts = {
        "settings": dataclasses.asdict(settings),
        "outcome": dataclasses.asdict(outcome),
        "tokens": outcome.steps * settings.batch * settings.window,
        "corpus": corpus.facts,
    }
    command.write_facts(out / "train.json", facts, device)
    _log.info("validation %.4f bits per byte, written to %s", outcome.best, out)


if __name__ == "__main__":
    main()
