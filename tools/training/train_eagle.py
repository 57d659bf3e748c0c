"""Trains the draft head: ``python -m tools.training.train_eagle --model FOLDER``.

The folder holds a finished model; ``eagle.safetensors`` and ``train_eagle.json`` are added to it.
The head learns on the library's sources and on texts that the model continues, greedily and by
sampling: what it will draft for. The model stays as it is.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from sample_engine.model import checkpoint
from sample_engine.model.eagle_head import EagleConfig, EagleHead
from sample_engine.model.llama import Llama
from sample_engine.model.loading import load_model
from tools.training import command, loop
from tools.training.corpus import Corpus, Windows, load_corpus
from tools.training.generate import continued
from tools.training.optimizer import Optimizer, OptimizerSettings
from tools.training.unroll import draft_loss, expected_tokens, guess

__all__ = ["HeadSettings", "initialize_head", "main", "train_head"]

_log = logging.getLogger(__name__)

_TEXTS_AT_A_TIME = 2048


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadSettings:
    """How the head is trained."""

    intermediate_size: int = 704
    window: int = 1024  # anchors in a window
    batch: int = 16  # windows in a step
    steps: int = 5  # guesses from each anchor
    decay: float = 0.9  # of the losses of these
    variation: float = 1.0  # the share of total variation in the loss
    texts: int = 4096  # that the model continues, half of them greedily
    prompt: int = 128  # tokens that it continues
    own_share: float = 0.5  # of the windows, from these texts
    optimizer: OptimizerSettings = dataclasses.field(
        default_factory=lambda: OptimizerSettings(weight_decay=0.01)
    )
    seed: int = 0
    compile: bool = True  # on CUDA only

    @property
    def size(self) -> int:
        """Tokens of a window."""
        return self.window + self.steps


def train_head(
    head: EagleHead,
    model: Llama,
    corpus: Corpus,
    settings: HeadSettings,
    budget: loop.Budget,
    keep: Callable[[], None],
) -> loop.Outcome:
    """Train a head that lies on the model's device; ``keep`` is called where it is the best."""
    device = next(head.parameters()).device
    on_gpu = device.type == "cuda"
    batches = _batches(model, corpus, settings, device)
    trial = _own_texts(model, corpus.validation.to(device), settings, min(64, settings.texts))
    optimizer = Optimizer(head, settings.optimizer)

    def loss_of(windows: Tensor) -> Tensor:
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=on_gpu):
            guesses = guess(head, model, windows, settings.steps)
        return draft_loss(guesses, settings.decay, settings.variation)

    faster = loop.compiled(loss_of, batches(), wanted=settings.compile and on_gpu)
    head.zero_grad()

    def update(factor: float) -> Tensor:
        loss = faster(batches())
        loss.backward()
        optimizer.step(factor)
        return loss.detach()

    def check() -> float:
        found = [
            _tokens_per_step(head, model, texts, settings.steps, temperature)
            for temperature, texts in trial.items()
        ]
        _log.info("tokens per verification: greedy %.3f, sampled %.3f", *found)
        return -sum(found)

    return loop.run(
        update=update,
        check=check,
        keep=keep,
        budget=budget,
        tokens_per_step=settings.batch * settings.window,
    )


def initialize_head(head: EagleHead, model: Llama, seed: int) -> None:
    """Give a head its first weights: a layer that adds nothing, and the model's output layer."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in head.parameters():
            if parameter.dim() > 1:
                draw = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(draw * 0.7 * parameter.shape[1] ** -0.5)
        head.self_attn.o_proj.weight.zero_()
        head.mlp.down_proj.weight.zero_()
        output = model.embed_tokens if model.lm_head is None else model.lm_head
        head.lm_head.weight.copy_(output.weight)


def _tokens_per_step(
    head: EagleHead,
    model: Llama,
    texts: Tensor,  # [B, N]
    steps: int,
    temperature: float,
) -> float:
    """Return the tokens per verification that drafts of ``steps`` tokens would yield."""

    def accepted(said: Tensor, guessed: Tensor) -> Tensor:
        if temperature == 0:
            return (said.argmax(-1) == guessed.argmax(-1)).float()
        return torch.minimum(said.softmax(-1), guessed.softmax(-1)).sum(-1)

    with torch.no_grad():
        pieces = texts.split(8)
        found = [expected_tokens(guess(head, model, piece, steps), accepted) for piece in pieces]
    total = sum(value * len(piece) for value, piece in zip(found, pieces, strict=True))
    return float(total / len(texts))


def _own_texts(
    model: Llama, tokens: Tensor, settings: HeadSettings, count: int
) -> dict[float, Tensor]:
    """Return texts that the model continues: by temperature, ``[count / 2, size]``."""
    writer = copy.deepcopy(model).bfloat16() if tokens.is_cuda else model
    generator = torch.Generator(tokens.device).manual_seed(settings.seed)
    prompts = Windows(tokens, settings.prompt, settings.seed)
    texts = {}
    for temperature in (0.0, 1.0):
        started = time.monotonic()
        pieces = prompts.next(count // 2).split(_TEXTS_AT_A_TIME)
        texts[temperature] = torch.cat(
            [continued(writer, piece, settings.size, temperature, generator) for piece in pieces]
        )
        _log.info(
            "%d texts at temperature %g in %.0f s",
            count // 2,
            temperature,
            time.monotonic() - started,
        )
    return texts


def _batches(
    model: Llama, corpus: Corpus, settings: HeadSettings, device: torch.device
) -> Callable[[], Tensor]:
    """Return what gives the next batch ``[batch, size]``: sources, and texts of the model."""
    tokens = corpus.train.to(device)
    sources = Windows(tokens, settings.size, settings.seed)
    own = round(settings.own_share * settings.batch)
    texts = torch.cat(list(_own_texts(model, tokens, settings, settings.texts).values()))
    written = Windows(texts.flatten(), settings.size, settings.seed, aligned=True)
    return lambda: torch.cat((sources.next(settings.batch - own), written.next(own)))


def _parser() -> argparse.ArgumentParser:
    parser = command.parser("train_eagle", minutes=3.0)
    parser.add_argument("--model", type=Path, required=True, help="folder of the trained model")
    parser.add_argument("--out", type=Path, help="folder for the head; the model's if not given")
    for name in ("window", "batch", "decay", "variation", "texts", "prompt", "own-share", "seed"):
        default = getattr(HeadSettings, name.replace("-", "_"))
        parser.add_argument(f"--{name}", type=type(default), default=default)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Train from the command line."""
    options = _parser().parse_args(arguments)
    loop.set_up_logging()
    budget = command.budget_of(options)
    device = loop.pick_device(options.device)
    settings = HeadSettings(
        window=options.window,
        batch=options.batch,
        decay=options.decay,
        variation=options.variation,
        texts=options.texts,
        prompt=options.prompt,
        own_share=options.own_share,
        seed=options.seed,
        compile=not options.no_compile,
    )
    torch.manual_seed(settings.seed)
    corpus = load_corpus(options.source, options.max_bytes)
    model = load_model(str(options.model), device=device, dtype=torch.float32)
    config = EagleConfig.for_target(model.config, settings.intermediate_size)
    head = EagleHead(config)
    initialize_head(head, model, settings.seed)
    head.to(device)
    out: Path = options.out or options.model
    out.mkdir(parents=True, exist_ok=True)
    parts, metadata = checkpoint.plain_parts(head), {"config": config.to_json()}
    outcome = train_head(
        *(head, model, corpus, settings, budget),
        keep=lambda: checkpoint.write(out / "eagle.safetensors", head, parts, metadata),
    )
    facts = {
        "settings": dataclasses.asdict(settings),
        "outcome": dataclasses.asdict(outcome),
    }
    command.write_facts(out / "train_eagle.json", facts, device)
    _log.info("greedy and sampled together %.3f, written to %s", -outcome.best, out)


if __name__ == "__main__":
    main()
