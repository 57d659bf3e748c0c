"""The template of a model that turns a conversation into a prompt: Jinja2's, in its sandbox."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from sample_engine.errors import ConfigError, PromptError
from sample_engine.model.settings_file import is_there, read_text
from sample_engine.tokenizers.special_tokens import (
    content_of,
    named_tokens,
    settings_of_tokenizer,
)

__all__ = ["ChatTemplate", "read_chat_template"]


class _RefusedError(Exception):
    """The template itself has refused the conversation. Recoverable: another one may do."""


class ChatTemplate:
    """A template, compiled. ``special``: the texts of the tokens that it may name.

    Raises :class:`ConfigError` where it is no template, or Jinja2 is missing.
    """

    def __init__(self, text: str, special: Mapping[str, str], path: Path) -> None:
        try:
            environment = _environment()
        except ImportError:
            raise ConfigError(
                f"{str(path)!r} has a chat template, which needs Jinja2: pip install jinja2."
            ) from None
        self._special = dict(special)
        self._path = path
        try:
            self._template = environment.from_string(text)
        except Exception as error:  # one too deep for Jinja2, or for Python, is no TemplateError
            raise ConfigError(
                f"The chat template in {str(path)!r} is none: {_words(error)}."
            ) from error

    def prompt(self, messages: Sequence[Mapping[str, Any]], *, answer: bool = True) -> str:
        """Return a conversation as text; ``answer``: with the beginning of an answer.

        A key of a message whose value is None counts as not there. Raises :class:`PromptError`
        where the template refuses it or fails.
        """
        given = [
            {name: value for name, value in message.items() if value is not None}
            for message in messages
        ]
        values = {"tools": None, "documents": None, **self._special}  # None: asked for by "is none"
        try:
            text: str = self._template.render(
                **values, messages=given, add_generation_prompt=answer
            )
        except _RefusedError as error:
            raise PromptError(f"The model's chat template refuses this: {error}") from None
        except Exception as error:  # a template is a program, and may fail as one
            raise PromptError(
                f"The chat template in {str(self._path)!r} fails: {_words(error)}. Check the "
                "messages, or give the prompt as text."
            ) from error
        return text


def read_chat_template(folder: Path) -> ChatTemplate | None:
    """Return the template in a model's folder; None: it has none.

    Raises :class:`ConfigError` for one that cannot be used.
    """
    path = folder / "tokenizer_config.json"
    alone = folder / "chat_template.jinja"
    text: Any = settings_of_tokenizer(folder).get("chat_template")
    if is_there(alone):
        path, text = alone, read_text(alone)
    if isinstance(text, list):  # several, by name
        text = _default_of(text, path)
    if text is None:
        others = folder / "additional_chat_templates"
        names = sorted(each.stem for each in others.glob("*.jinja"))
        if names:
            raise ConfigError(_no_default(others, names))
        return None
    if not isinstance(text, str):
        raise ConfigError(f"The chat template in {str(path)!r} is no text.")
    special = {name: content_of(token) for name, token in named_tokens(folder).items()}
    return ChatTemplate(text, special, path)


def _default_of(named: list[Any], path: Path) -> Any:
    """The one of several templates that is taken where nobody asks for another."""
    of_name = {
        each["name"]: each.get("template")
        for each in named
        if isinstance(each, dict) and isinstance(each.get("name"), str)
    }
    text = of_name.pop("default", None)
    if text is None:
        raise ConfigError(_no_default(path, of_name))
    return text


def _no_default(path: Path, names: Iterable[str]) -> str:
    """What is said where no template is the one that a conversation is meant for."""
    return (
        f"{str(path)!r} has chat templates by name, and none that is called 'default': "
        f"{', '.join(map(repr, names)) or 'none at all'}. Put the text of the one that "
        "conversations are to have into a file chat_template.jinja of the model's folder."
    )


def _environment() -> Any:
    """Where templates run, with what ``transformers`` gives them."""
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """What an assistant has said, which training asks for: here it is its text alone."""

        tags = {"generation"}  # noqa: RUF012  # as Jinja2 declares it

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
    )
    environment.filters["tojson"] = _as_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _now
    return environment


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).rstrip('.')}"


def _refuse(message: object) -> NoReturn:
    raise _RefusedError(str(message))


def _now(how: str) -> str:
    return datetime.datetime.now(datetime.timezone.utc).astimezone().strftime(how)


def _as_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as a model reads it: nothing is escaped for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
