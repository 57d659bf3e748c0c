"""Measures a trained model and its head: ``python -m tools.training.evaluate --card``.

It writes ``evaluation.json`` to the model's folder, and with ``--card`` the model card with the
numbers from there.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sample_engine.model.eagle_head import EagleHead
from sample_engine.model.llama import Llama
from sample_engine.model.loading import TINY_FOLDER, load_eagle_head, load_model
from tools.training import loop
from tools.training.acceptance import acceptances
from tools.training.command import machine
from tools.training.corpus import Windows, load_corpus
from tools.training.generate import continued
from tools.training.measure import bits_per_byte
from tools.training.unroll import guess

__all__ = ["main", "measured_head", "model_card"]

_log = logging.getLogger(__name__)
_TEMPLATE = Path(__file__).with_name("MODEL_CARD.template.md")
_DRAFTS = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
    """What the draft head is measured on."""

    prompts: int = 128
    prompt: int = 128  # bytes
    continuation: int = 256  # tokens
    seed: int = 1


def measured_head(
    head: EagleHead,
    model: Llama,
    tokens: Tensor,  # [N] held-out, on the model's device
    trial: Trial,
) -> dict[str, Any]:
    """Return the acceptance of a head's guesses, greedily and sampled, and its plain agreement."""
    prompts = Windows(tokens, trial.prompt, trial.seed).next(trial.prompts)
    found: dict[str, Any] = {"trial": dataclasses.asdict(trial)}
    for name, temperature in (("greedy", 0.0), ("sampled", 1.0)):
        generator = torch.Generator(tokens.device).manual_seed(trial.seed)
        length = trial.prompt + trial.continuation
        texts = continued(model, prompts, length, temperature, generator)
        draws = torch.Generator().manual_seed(trial.seed)
        rates = acceptances(head, model, texts, trial.prompt, temperature, draws, _DRAFTS)
        found[name] = {str(drafts): dataclasses.asdict(rate) for drafts, rate in rates.items()}
        _log.info(
            "%s: %s tokens per step",
            name,
            ", ".join(f"k={drafts} {rate.tokens_per_step:.3f}" for drafts, rate in rates.items()),
        )
    found["agreement"] = _agreement(head, model, tokens)
    return found


def _agreement(
    head: EagleHead,
    model: Llama,
    tokens: Tensor,  # [N]
) -> list[float]:
    """Return how often head and model have the same favourite, by draft step, on plain text."""
    windows = Windows(tokens, min(512, len(tokens) // 2), seed=0).next(32)
    with torch.no_grad():
        pieces = [guess(head, model, piece, _DRAFTS) for piece in windows.split(8)]
    agreed = [
        [(said.argmax(-1) == guessed.argmax(-1)).float().mean() for said, guessed in pairs]
        for pairs in ([piece.pair(step) for step in range(_DRAFTS)] for piece in pieces)
    ]
    return [float(value) for value in torch.tensor(agreed).mean(0)]


def model_card(results: dict[str, Any]) -> str:
    """Return the text of the model card for what ``evaluation.json`` holds."""
    config, head = results["config"], results["head"]
    train, train_head = results["train"], results["train_eagle"]
    corpus = train["corpus"]
    rows = [
        f"| {drafts} | "
        + " | ".join(
            f"**{rate['tokens_per_step']:.2f}** | {_list(rate['by_position'])}"
            for rate in (head[name][str(drafts)] for name in ("greedy", "sampled"))
        )
        + " |"
        for drafts in range(1, _DRAFTS + 1)
    ]
    return string.Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        ffn=config["intermediate_size"],
        context=config["max_position_embeddings"],
        aux_layers=", ".join(map(str, head["aux_layers"])),
        parameters=f"{results['parameters']:,}",
        model_bytes=f"{results['bytes']:,}",
        head_parameters=f"{head['parameters']:,}",
        head_bytes=f"{head['bytes']:,}",
        bits_per_byte=f"{results['bits_per_byte']:.3f}",
        short_bits_per_byte=f"{results['short_bits_per_byte']:.3f}",
        window=results["window"],
        half=results["window"] // 2,
        acceptance_rows="\n".join(rows),
        agreement=_list(head["agreement"]),
        **head["trial"],
        **{name: f"{v:,}" if isinstance(v, int) else v for name, v in corpus.items()},
        **train["machine"],
        train_minutes=f"{train['outcome']['seconds'] / 60:.1f}",
        train_tokens=f"{train['tokens']:,}",
        train_steps=train["outcome"]["steps"],
        train_seed=train["settings"]["seed"],
        dropout=train["settings"]["dropout"],
        tests_share=train["settings"]["tests_share"],
        weight_decay=train["settings"]["optimizer"]["weight_decay"],
        head_minutes=f"{train_head['outcome']['seconds'] / 60:.1f}",
        head_steps=train_head["outcome"]["steps"],
        head_seed=train_head["settings"]["seed"],
        variation=train_head["settings"]["variation"],
        own_share=train_head["settings"]["own_share"],
    )


def _list(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.training.evaluate")
    parser.add_argument("--model", type=Path, default=TINY_FOLDER, help="folder of the model")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1")
    parser.add_argument("--source", type=Path, help="a library folder instead of this Python's")
    parser.add_argument("--max-bytes", type=int, help="of each split, for short trials")
    parser.add_argument("--window", type=int, default=2048)
    parser.add_argument("--prompts", type=int, default=Trial.prompts)
    parser.add_argument("--continuation", type=int, default=Trial.continuation)
    parser.add_argument("--no-head", action="store_true", help="the model alone")
    parser.add_argument("--card", action="store_true", help="write MODEL_CARD.md too")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure from the command line."""
    options = _parser().parse_args(arguments)
    if options.card and options.no_head:
        raise SystemExit("--card needs the numbers of the head: leave out --no-head.")
    loop.set_up_logging()
    device = loop.pick_device(options.device)
    folder: Path = options.model
    history = _history(folder)
    if options.card and len(history) < 2:
        raise SystemExit(f"--card needs train.json and train_eagle.json in {str(folder)!r}.")
    model = load_model(str(folder), device=device, dtype=torch.float32)
    corpus = load_corpus(options.source, options.max_bytes)
    tokens = corpus.held_out.to(device)
    long = bits_per_byte(model, tokens, window=options.window)
    short = bits_per_byte(model, tokens, window=options.window // 2, overlap=False)
    _log.info("held-out bits per byte: %.4f, in short windows %.4f", long.value, short.value)
    results: dict[str, Any] = {
        "bits_per_byte": long.value,
        "short_bits_per_byte": short.value,
        "scored_bytes": long.num_bytes,
        "window": options.window,
        "parameters": _count(model),
        "bytes": (folder / "model.safetensors").stat().st_size,
        "config": dataclasses.asdict(model.config),
        "corpus": corpus.facts,
        "machine": machine(device),
    }
    results.update(history)
    if corpus.facts["digest"] != results.get("train", {}).get("corpus", {}).get("digest"):
        _log.warning("this corpus is not the one that was trained on; held-out paths are the same")
    if not options.no_head:
        head = load_eagle_head(str(folder), device=device, dtype=torch.float32)
        trial = Trial(prompts=options.prompts, continuation=options.continuation)
        results["head"] = {
            **measured_head(head, model, tokens, trial),
            "parameters": _count(head),
            "bytes": (folder / "eagle.safetensors").stat().st_size,
            "aux_layers": head.config.aux_layers,
        }
    text = json.dumps(results, indent=2)
    (folder / "evaluation.json").write_text(text + "\n", encoding="utf-8")
    if options.card:
        (folder / "MODEL_CARD.md").write_text(model_card(results), encoding="utf-8")


def _history(folder: Path) -> dict[str, Any]:
    """Return what the trainings wrote down of themselves."""
    paths = {name: folder / f"{name}.json" for name in ("train", "train_eagle")}
    return {
        name: json.loads(path.read_text(encoding="utf-8"))
        for name, path in paths.items()
        if path.is_file()
    }


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


if __name__ == "__main__":
    main()
