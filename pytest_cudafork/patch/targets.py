"""From what a user says is to be patched to names that another process can look up.

Nothing is imported for it: an import may be what the patch is to come before.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any


def split(call: str, target: str) -> tuple[str, str]:
    """Return the module of a dotted name, and the dotted names from there on.

    The longest part that is a module counts, imported or not; the last name never does.

    Args:
        call: What messages begin with.
        target: The dotted name.

    Raises:
        ValueError: It is none, or lies in the script that was started.
        ModuleNotFoundError: There is no module that it begins with.

    """
    parts = target.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise ValueError(f"{call}: {target!r} is no dotted name of a module and something in it")
    if parts[0] == "__main__":
        raise ValueError(f"{call}: __main__ is another module in every process")
    for count in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:count])
        if name in sys.modules or _exists(parts[:count]):
            return name, ".".join(parts[count:])
    raise ModuleNotFoundError(f"{call}: there is no module {parts[0]!r}", name=parts[0])


def name_of(call: str, thing: object) -> str:
    """Return the dotted name of a module or a class.

    Raises:
        TypeError: It is neither, or nobody finds it again by its name.

    """
    if isinstance(thing, ModuleType):
        if sys.modules.get(thing.__name__) is thing:
            return thing.__name__
    elif isinstance(thing, type):
        found: Any = sys.modules.get(thing.__module__)
        for part in thing.__qualname__.split("."):
            found = getattr(found, part, None)
        if found is thing:
            return f"{thing.__module__}.{thing.__qualname__}"
    raise TypeError(
        f"{call}: another process cannot find {repr(thing)[:200]} by a name; give its dotted "
        "name, as in 'package.module.Class.attribute'"
    )


def _exists(parts: Sequence[str]) -> bool:
    """Whether there is a module of this name to be imported."""
    search: Any = None
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[:count])
        if name in sys.modules:
            search = getattr(sys.modules[name], "__path__", None)
        else:
            spec = _spec(name, search)
            if spec is None:
                return False
            search = spec.submodule_search_locations
        if search is None and count < len(parts):
            return False
    return True


def _spec(name: str, search: Any) -> Any:
    """Return what the finders say of a module, without importing what is around it."""
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec = None if find is None else find(name, search, None)
        if spec is not None:
            return spec
    return None
