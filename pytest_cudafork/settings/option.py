"""What an option is: its three names, and which of its sources counts.

Precedence: command line > environment variable > ini file > default.
"""

import argparse
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest

from pytest_cudafork.settings import environment


# Annotations of this module are no texts: NamedTuple compiles each, while the plugin is imported.
class Option(NamedTuple):
    """One setting and its sources.

    Attributes:
        name: The ini option; the other two names follow from it.
        metavar: What stands for the value in the help.
        help: The help.
        flag_value: The value of the bare flag; None: a value is required.
        lines: Whether the ini file may give one value a line.

    """

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

    @property
    def is_file(self) -> bool:
        """Whether the value is the path of a file."""
        return self.metavar == "FILE"


Table = Mapping[str, tuple[Option, Callable[[str], Any]]]
"""Options by the name of the field that holds the value, each with what reads its text."""


def read_table(config: pytest.Config, namespace: Any, table: Table) -> dict[str, Any]:
    """Return the values of all options that have one, by field; as ``read_option`` reads them.

    Raises:
        pytest.UsageError: a value is not one of those allowed; the message names its source.

    """
    values = {
        field: read_option(config, namespace, option, parse)
        for field, (option, parse) in table.items()
    }
    return {field: value for field, value in values.items() if value is not None}


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
    given = given_text(config, namespace, option)
    if given is None:
        return None
    source, text = given
    if option.is_file and text and source not in (option.flag, option.env):
        text = os.path.join(_ini_folder(config), text)
    try:
        return parse(text)
    except ValueError as error:
        raise pytest.UsageError(f"{source}: {error}") from None


def _ini_folder(config: pytest.Config) -> str:
    """Return the folder to which paths in the ini file are relative, as pytest's own are.

    So a session that is started in a subfolder finds, and writes, the same file.
    """
    folder = config.invocation_params.dir if config.inipath is None else config.inipath.parent
    return os.fspath(folder)


def given_text(config: pytest.Config, namespace: Any, option: Option) -> tuple[str, str] | None:
    """Return the first source that has a value, as an error names it, and the value's text.

    Raises:
        pytest.UsageError: the value in the ini file is of a type that the option does not have.

    """
    try:
        ini = config.getini(option.name)
    except TypeError as error:  # of some releases of pytest, for a number in [tool.pytest]
        raise pytest.UsageError(f"ini option {option.name}: {error}") from None
    sources = (
        (option.flag, getattr(namespace, option.name, None)),
        (option.env, environment.optional(option.env)),
    )
    for source, text in sources:
        # Empty is as good as unset, except where somebody typed it.
        if text is not None and (text != "" or source == option.flag):
            return source, text
    text = _ini_text(option, ini) if isinstance(ini, list) else ini
    return None if text in ("", None) else (f"ini option {option.name}", text)


def _ini_text(option: Option, given: list[Any]) -> str:
    """Return the text of a list in the ini file.

    pytest makes texts of all else that stands in ``[tool.pytest.ini_options]``, and leaves lists
    as they are. Where an option is one text, its commas may mean more than a list says: of GPUs,
    ``2`` is a number and ``2,`` a list.

    Raises:
        pytest.UsageError: a list is not what the option takes.

    """
    if given and not option.lines:
        raise pytest.UsageError(
            f"ini option {option.name}: {given} is a list, and this option takes one text"
        )
    return ",".join(map(str, given))


def uses_debugger(config: pytest.Config) -> bool:
    """Whether ``--pdb`` or ``--trace`` is on; ``-p no:debugging`` takes both options away."""
    option = config.option
    return bool(getattr(option, "usepdb", False) or getattr(option, "trace", False))


def parse_modules(text: str) -> tuple[str, ...]:
    """Read module names separated by commas.

    Raises:
        ValueError: one of them is not a dotted name, or is that of a file here.

    """
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        is_file = name.endswith(".py") and os.path.exists(name)
        if is_file or not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(
                f"{name!r} is not a module name: name it as in an import, not by its file or folder"
            )
    return names


def parse_file(text: str) -> str:
    """Make a file's path absolute; "" stays."""
    return os.path.abspath(text) if text else ""


def typed(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a reader of values for argparse, which shows the words of a ValueError."""

    def read(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read
