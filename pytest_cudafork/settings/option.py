"""Owns what an option is: its three spellings, and which of its sources counts.

It does not know which options there are. Precedence: command line > environment variable > ini file
> default.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest


class Option(NamedTuple):
    """One setting and its sources; ``lines`` marks an ini list."""

    name: str
    metavar: str
    help: str
    flag_value: str | None = None
    lines: bool = False

    @property
    def flag(self) -> str:
        """The command line spelling."""
        return "--" + self.name.replace("_", "-")

    @property
    def env(self) -> str:
        """The environment variable."""
        return "PYTEST_" + self.name.upper()


def read_option(
    config: pytest.Config, namespace: Any, option: Option, parse: Callable[[str], Any]
) -> Any:
    """Return the first source that has a value, parsed; None when none has one.

    Args:
        config: for the ini file.
        namespace: the parsed command line, where an option that was not given is None.
        option: which one.
        parse: raises ValueError for a text that is not a value.

    Raises:
        pytest.UsageError: the value is none; the message names its source.

    """
    ini = config.getini(option.name)
    sources = (
        (option.flag, getattr(namespace, option.name, None)),
        (option.env, os.environ.get(option.env)),
        (f"ini option {option.name}", ",".join(ini) if isinstance(ini, list) else ini),
    )
    for source, text in sources:
        # Empty is as good as unset, except where somebody typed it.
        if text is None or (text == "" and source != option.flag):
            continue
        try:
            return parse(text)
        except ValueError as error:
            raise pytest.UsageError(f"{source}: {error}") from None
    return None


def parse_modules(text: str) -> tuple[str, ...]:
    """Read module names separated by commas.

    Raises:
        ValueError: one of them is not a dotted name.

    """
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"{name!r} is not a module name")
    return names


def parse_file(text: str) -> str:
    """Make a file's path absolute; "" stays."""
    return os.path.abspath(text) if text else ""
