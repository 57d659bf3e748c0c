"""Imports that a module puts off until a name is used: ``lazy import`` of Python 3.15.

The audit loads them, too. Whoever uses the name first runs them, and that may be the process that
forks; with ``-X lazy_imports=all`` an import would run next to nothing, and every module be clean.
"""

from __future__ import annotations

import sys
from collections.abc import Callable


def put_off_now() -> frozenset[str]:
    """Return the modules whose import is put off in this process; none before Python 3.15."""
    return frozenset(map(str, getattr(sys, "lazy_modules", ())))


def load_put_off(load: Callable[[str], object], before: frozenset[str]) -> None:
    """Load what has been put off meanwhile, and what that puts off in its turn.

    A module that cannot be loaded stays put off: a library that is not there matters to who uses
    it. In ``lazy from a import b`` the name may be no module's.

    Args:
        load: Imports a module by its name.
        before: What ``put_off_now`` returned then.

    """
    tried = set(before)
    while names := put_off_now() - tried:
        for name in sorted(names):
            tried.add(name)
            try:
                load(name)
            except (Exception, SystemExit):
                continue
