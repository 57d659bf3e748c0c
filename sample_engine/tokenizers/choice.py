"""From a model to its tokenizer and its chat template, before anything of it is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sample_engine.config import EngineConfig
from sample_engine.errors import PromptError
from sample_engine.model.config_file import TINY_FOLDER, is_shape_alone, read_config
from sample_engine.model.settings_file import is_there
from sample_engine.tokenizers.byte_tokenizer import ByteTokenizer
from sample_engine.tokenizers.chat_template import ChatTemplate, read_chat_template
from sample_engine.tokenizers.messages import with_text
from sample_engine.tokenizers.no_tokenizer import NoTokenizer
from sample_engine.tokenizers.subword_tokenizer import SubwordTokenizer

__all__ = ["BYTES", "ModelText", "text_of_model"]


class ModelText(NamedTuple):
    """How a model's text becomes tokens, and a conversation a text."""

    tokenizer: ByteTokenizer | NoTokenizer | SubwordTokenizer
    template: ChatTemplate | None = None

    def conversation(self, messages: Sequence[Mapping[str, Any]]) -> tuple[str, list[int]]:
        """Return a conversation as text and tokens, up to where the answer begins.

        A content may be a text, or parts of one. Without a template each message is a line,
        ``role: text``. Raises :class:`PromptError`.
        """
        if not isinstance(messages, Sequence) or not (
            messages and all(isinstance(each, Mapping) for each in messages)
        ):
            raise PromptError(
                "A conversation is a list of at least one message, and a message a mapping: "
                "{'role': 'user', 'content': '...'}."
            )
        messages = list(map(with_text, messages))
        if self.template is not None:
            text = self.template.prompt(messages)
            return text, self.tokenizer.encode(text, special=False)
        for message in messages:
            if not all(isinstance(message.get(name), str) for name in ("role", "content")):
                raise PromptError(f"The message {message!r} must have texts as role and content.")
        lines = [f"{message['role']}: {message['content']}\n" for message in messages]
        text = "".join([*lines, "assistant: "])
        return text, self.tokenizer.encode(text)


BYTES = ModelText(ByteTokenizer())


def text_of_model(config: EngineConfig) -> ModelText:
    """Return the tokenizer of a configuration's model.

    A model of 257 tokens is one of bytes, as is one of random weights; another one without a
    ``tokenizer.json`` takes tokens alone. Raises :class:`ConfigError` where its files are wrong.
    """
    folder = TINY_FOLDER if config.model == "tiny" else Path(config.model)
    path = folder / "tokenizer.json"
    if is_shape_alone(config.model):
        return BYTES
    size = read_config(config.model).vocab_size
    if is_there(path):
        return ModelText(SubwordTokenizer(path, size), read_chat_template(folder))
    if size == ByteTokenizer.vocab_size or config.load_format == "dummy":
        template = read_chat_template(folder)
        return BYTES if template is None else BYTES._replace(template=template)
    return ModelText(NoTokenizer(str(path)))
