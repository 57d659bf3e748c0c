"""What an audit imports: the modules that were found, and the targets they become."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple


def is_of_stdlib(name: str) -> bool:
    """Whether a module is of the standard library, by its name."""
    return name.partition(".")[0] in sys.stdlib_module_names


class FoundModule(NamedTuple):
    """One module that can be asked for by name.

    Attributes:
        name: Its full name.
        path: Its file; "" for a namespace package, and for what is built into the interpreter.
        is_package: Whether it can have modules below it.

    """

    name: str
    path: str
    is_package: bool = False


class Target(NamedTuple):
    """One import to audit; ``without`` is the hidden library, or ""."""

    package: str
    module: str
    without: str = ""

    @property
    def nodeid(self) -> str:
        """The name under which it is selected and reported."""
        hidden = f"[without {self.without}]" if self.without else ""
        return f"{self.package}::{self.module}{hidden}"


def targets_of(
    found: Mapping[str, Sequence[FoundModule]], without: Iterable[str] = ()
) -> list[Target]:
    """Return all imports of an audit: each package as it is, then with each library hidden."""
    hidden = ("", *without)
    return [
        Target(package, module.name, library)
        for package, modules in found.items()
        for library in hidden
        for module in modules
    ]
