"""The special tokens that a model's folder names: which there are, and what they are called.

It imports no tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sample_engine.model.settings_file import read_settings

__all__ = ["content_of", "listed_tokens", "named_tokens", "settings_of_tokenizer"]

_NAMES = (
    *("bos_token", "eos_token", "unk_token", "sep_token"),
    *("pad_token", "cls_token", "mask_token"),
)


def settings_of_tokenizer(folder: Path) -> dict[str, Any]:
    """Return what ``tokenizer_config.json`` holds; nothing where it is not there."""
    path = folder / "tokenizer_config.json"
    return read_settings(path) if path.is_file() else {}


def named_tokens(folder: Path) -> dict[str, Any]:
    """The special tokens by name, each a text or an object with one.

    Those that a model has of its own have names, too. Folders of some years ago have them in a file
    of their own.
    """
    found: dict[str, Any] = {}
    for each in _places(folder):
        own = each.get("extra_special_tokens")
        own = own if isinstance(own, Mapping) else {}
        alone = (name for name, token in each.items() if _is_named(name, token))
        for name in (*_NAMES, *own, *alone):
            token = each.get(name, own.get(name))
            if content_of(token):
                found.setdefault(name, token)
    return found


def listed_tokens(folder: Path) -> list[Any]:
    """The special tokens without a name, each a text or an object with one."""
    found: list[Any] = []
    for each in _places(folder):
        for name in ("extra_special_tokens", "additional_special_tokens"):
            tokens = each.get(name)
            if isinstance(tokens, list):
                found += filter(content_of, tokens)
    return found


def content_of(token: Any) -> str:
    """The text of a special token, which stands by itself or in an object."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _places(folder: Path) -> Iterator[Mapping[str, Any]]:
    yield settings_of_tokenizer(folder)
    beside = folder / "special_tokens_map.json"
    if beside.is_file():
        yield read_settings(beside)


def _is_named(name: str, token: Any) -> bool:
    return name.endswith("_token") and isinstance(token, str)
