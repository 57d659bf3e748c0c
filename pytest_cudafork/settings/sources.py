"""Where the value of each option comes from, in the words of the header that ``-v`` shows.

And which variables look as if one came from them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

from pytest_cudafork.settings import environment
from pytest_cudafork.settings.option import Option, given_text

COMMAND_LINE = "the command line"


def source_lines(config: pytest.Config, options: Iterable[Option]) -> list[str]:
    """Return a line for each option that has a value: name, value, source."""
    lines = []
    for option in options:
        given = given_text(config, config.option, option)
        if given is not None:
            name, text = given
            shown = text.replace("\n", " ") or "(empty)"
            where = source_of(config, option, name)
            lines.append(f"{option.flag.removeprefix('--')}: {shown}, from {where}")
    return lines


def in_vain(options: Iterable[Option]) -> list[str]:
    """Say of each variable of the environment that no option reads, though it looks like one's."""
    known = {environment.RUN, *(option.env for option in options)}
    texts = []
    for name in environment.names_like_ours():
        if name not in known:
            from difflib import get_close_matches  # late: few have a slip in a name

            close = get_close_matches(name, sorted(known), n=1)
            hint = f" Did you mean {close[0]}?" if close else ""
            texts.append(f"nothing reads the variable {name}: there is no such option.{hint}")
    return texts


def source_of(config: pytest.Config, option: Option, name: str) -> str:
    """Return where the value of an option comes from.

    Args:
        config: The session's configuration.
        option: It.
        name: The source, as ``given_text`` names it.

    """
    if name == option.env:
        return f"the environment ({option.env})"
    if name != option.flag:
        return _ini_source(config, option)
    if _is_in(option, map(str, config.invocation_params.args)):
        return COMMAND_LINE
    if _is_in(option, environment.value(environment.ADDOPTS).split()):
        return environment.ADDOPTS
    addopts: Any = config.getini("addopts")
    if _is_in(option, addopts):
        return f"addopts in {_ini_file(config)}"
    return COMMAND_LINE  # such as a response file: @FILE


def _is_in(option: Option, args: Iterable[str]) -> bool:
    return any(arg == option.flag or arg.startswith(f"{option.flag}=") for arg in args)


def _ini_source(config: pytest.Config, option: Option) -> str:
    overridden: list[str] = config.getoption("override_ini", None) or []
    if any(each.partition("=")[0].strip() == option.name for each in overridden):
        return f"{COMMAND_LINE} (-o)"
    return _ini_file(config)


def _ini_file(config: pytest.Config) -> str:
    """Return the name of the ini file; of one outside the root folder its whole path."""
    path = config.inipath
    if path is None:
        return "the ini file"
    return path.name if path.parent == config.rootpath else os.fspath(path)
