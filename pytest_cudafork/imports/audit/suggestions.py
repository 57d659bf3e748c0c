"""Owns the words about a name that is no module: what may have been meant.

It does not know how modules are found.
"""

from __future__ import annotations

import difflib
import importlib.metadata
import re
from collections.abc import Iterable

_CLOSE = 0.8
"""How alike two names must be; at 0.6, difflib's own, 'nope' would mean 'opcode'."""
_MOST_CLOSE = 3


def meant(short: str, names: Iterable[str], parent: str = "") -> str:
    """Ask whether one of the names that are there was meant; "" if none is close.

    Args:
        short: The last part of the name that is not there.
        names: What is there in its place.
        parent: The package in which all this is, or "".

    """
    close = difflib.get_close_matches(short, sorted(names), n=_MOST_CLOSE, cutoff=_CLOSE)
    shown = [repr(".".join(filter(None, (parent, name)))) for name in close]
    return f" Did you mean {' or '.join(shown)}?" if shown else ""


def installed_as(name: str) -> str:
    """Tell what is imported if the name is that of a distribution."""

    def normalized(distribution: str) -> str:
        return re.sub(r"[-_.]+", "-", distribution).lower()

    modules = sorted(
        module
        for module, distributions in importlib.metadata.packages_distributions().items()
        if module.isidentifier() and normalized(name) in map(normalized, distributions)
    )
    if not modules:
        return " What is imported may be called otherwise than what is installed (PyYAML: 'yaml')."
    return f" The distribution {name!r} is imported as {' or '.join(map(repr, modules))}."
