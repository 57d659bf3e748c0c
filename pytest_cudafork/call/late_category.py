"""Classes of warnings whose module is not imported in a child: they are looked up late.

A filter for a warning of torch would otherwise import torch into every child. As long as nobody has
imported the module, nobody can give such a warning.
"""

from __future__ import annotations

import sys
from typing import Any


class LateCategory(type):
    """A class that stands for another one, known by name."""

    module: str
    qualname: str

    def __subclasscheck__(cls, other: type) -> bool:
        """Whether a class of warnings is the one meant, or derived from it."""
        found = _look_up(cls.module, cls.qualname)
        return isinstance(found, type) and issubclass(other, found)


class Named:
    """A class on its way to a child: its name travels, and :func:`named` is called there."""

    def __init__(self, category: type) -> None:
        if isinstance(category, LateCategory):
            self._name = category.module, category.qualname
        else:
            self._name = category.__module__, category.__qualname__

    @classmethod
    def suits(cls, category: type) -> bool:
        """Whether a class can be found again by its name."""
        if isinstance(category, LateCategory):
            return True
        return _look_up(category.__module__, category.__qualname__) is category

    def __reduce__(self) -> tuple[Any, tuple[str, str]]:
        """Become the class, or one that stands for it, when it is unpickled."""
        return named, self._name


def named(module: str, qualname: str) -> type:
    """The class of this name; where its module is not imported, one that stands for it."""
    found = _look_up(module, qualname)
    if isinstance(found, type):
        return found
    return LateCategory(qualname, (Warning,), {"module": module, "qualname": qualname})


def _look_up(module: str, qualname: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found
