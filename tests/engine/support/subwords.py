"""A small tokenizer of subwords, as the ``tokenizers`` library writes it, and a chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role == 'tool' %}{{ raise_exception('no tools: ' + message.content) }}"
    "{% endif %}"
    "<|{{ message.role }}|>{{ message.content | trim }}\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
WORDS = ["def", "return", "self", "import", "class", "for", "in", "the", "café", "世界", "😀"]


def make_tokenizer(vocab_size: int = 300) -> Any:
    """Return a byte-level tokenizer of at most so many tokens, a beginning and an end."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([" ".join(WORDS)] * 4, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


def save_tokenizer(folder: Path, vocab_size: int = 300, template: object = TEMPLATE) -> Any:
    """Write the tokenizer and its template to a model's folder."""
    tokenizer = make_tokenizer(vocab_size)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return tokenizer
