"""The special tokens that a model's folder names: which there are, and what they are called.

It imports no tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sample_engine.model.settings_file import is_there, read_settings

__all__ = ["content_of", "listed_tokens", "named_tokens", "settings_of_tokenizer"]

_NAMES = (
    *("bos_token", "eos_token", "unk_token", "sep_token"),
    *("pad_token", "cls_token", "mask_token"),
)
_LIST, _OLDER_LIST = "extra_special_tokens", "additional_special_tokens"
_OWN = (_LIST, "model_specific_special_tokens")  # where names of the model's own may stand


def settings_of_tokenizer(folder: Path) -> dict[str, Any]:
    """Return what ``tokenizer_config.json`` holds; nothing where it is not there."""
    path = folder / "tokenizer_config.json"
    return read_settings(path) if is_there(path) else {}


def named_tokens(folder: Path) -> dict[str, Any]:
    """The special tokens by name, each a text or an object with one.

    Those that a model has of its own have names, too.
    """
    given = _joined(folder)
    own: dict[str, Any] = {}
    for place in _OWN:
        more = given.get(place)
        own.update(more if isinstance(more, Mapping) else {})
    alone = (name for name in given if name.endswith("_token"))
    each = ((name, given.get(name, own.get(name))) for name in (*_NAMES, *own, *alone))
    return {name: token for name, token in each if content_of(token)}


def listed_tokens(folder: Path) -> list[Any]:
    """The special tokens without a name, each a text or an object with one."""
    given = _joined(folder)
    for name in (_LIST, _OLDER_LIST):
        if isinstance(given.get(name), list):
            return list(filter(content_of, given[name]))
    return []


def content_of(token: Any) -> str:
    """The text of a special token, which stands by itself or in an object."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _joined(folder: Path) -> dict[str, Any]:
    """What a folder says of its special tokens, as ``transformers`` takes it.

    Folders of some years ago have them in a file of their own. It counts, and more than
    ``tokenizer_config.json`` does, where that one has no ``added_tokens_decoder``.
    """
    given = settings_of_tokenizer(folder)
    if not given.get(_LIST) and _OLDER_LIST in given:
        given[_LIST] = given.pop(_OLDER_LIST)
    beside = folder / "special_tokens_map.json"
    if given.get("added_tokens_decoder") is not None or not is_there(beside):
        return given
    more = read_settings(beside)
    if isinstance(given.get(_LIST), list) and isinstance(more.get(_LIST), list):
        new = [token for token in more[_LIST] if token not in given[_LIST]]
        more[_LIST] = [*given[_LIST], *new]
    return {**given, **more}
