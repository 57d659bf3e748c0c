"""A module of the package that is audited, as it was found on disk."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FoundModule:
    """One module that can be asked for by name.

    Attributes:
        name: Its full name.
        path: Its file; "" for a namespace package, and for what is built into the interpreter.
        is_package: Whether it can have modules below it.
        is_extension: Whether it is compiled.

    """

    name: str
    path: str
    is_package: bool = False
    is_extension: bool = False
