"""What the messages of a conversation say, where their text comes in parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sample_engine.errors import PromptError

__all__ = ["text_of_parts", "with_text"]


def with_text(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message whose content is a text where it was parts of one.

    Most templates take a text alone, and some write of a list how Python shows it.
    """
    content = message.get("content")
    if not isinstance(content, (list, tuple)):
        return message
    return {**message, "content": text_of_parts(content)}


def text_of_parts(parts: Sequence[Any]) -> str:
    """Return the text of parts, each ``{"type": "text", "text": "..."}``.

    Raises :class:`PromptError` for a part that says anything else, which no model would see.
    """
    texts = []
    for part in parts:
        kind = part.get("type") if isinstance(part, Mapping) else part
        if kind != "text" or not isinstance(part.get("text"), str):
            raise PromptError(
                f"A message holds a part of the type {kind!r}; this model reads text alone."
            )
        for name, value in part.items():
            if value and name not in ("type", "text"):
                raise PromptError(
                    f"A part of a message has {name!r}, which this engine does not give to "
                    "models: leave it out, or say it in the text."
                )
        texts.append(part["text"])
    return "".join(texts)
