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


def across_characters(text: str) -> tuple[Any, list[int]]:
    """Return a byte-level tokenizer with tokens that end a character and begin the next one.

    Beside it the text in such tokens: its first byte, then three bytes each.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    (whole,) = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(
        text
    )
    letters = whole[0]  # one for each byte
    pieces = [letters[:1]] + [letters[at : at + 3] for at in range(1, len(letters), 3)]
    words = [*pre_tokenizers.ByteLevel.alphabet(), *(piece for piece in pieces if len(piece) > 1)]
    vocabulary = {word: number for number, word in enumerate(dict.fromkeys(words))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["</s>"])
    return tokenizer, [vocabulary[piece] for piece in pieces]


def with_byte_fallback() -> Any:
    """Return a tokenizer as SentencePiece's of Llama 2: a token for each byte, and few words."""
    from tokenizers import Tokenizer, decoders, models

    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += ["\u2581", "\u2581\u2581", "\u2581a", "b", "\u2581\u00e9", "\u00e9"]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer
