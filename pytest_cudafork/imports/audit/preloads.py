"""A guess which modules are worth importing once, in the fork server, before all others."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from pytest_cudafork.imports.graph.static_imports import absolute_name
from pytest_cudafork.imports.values.targets import FoundModule, is_of_stdlib

# A quick look that may be wrong; what is written is read exactly by graph/static_imports.py.
_IMPORT = re.compile(
    rb"^(?:import[ \t]+([\w.]+(?:[ \t]*,[ \t]*[\w.]+)*)|from[ \t]+([\w.]+)[ \t]+import\b)", re.M
)
_SHARE = 0.04
"""Which part of the modules must import a name for it to be worth trying."""
_FEWEST = 2
_MOST_CANDIDATES = 60
_MOST_BYTES = 1 << 20


def preloads_of(modules: Iterable[FoundModule]) -> list[str]:
    """Return what many modules of a package import at their top level, the most imported first.

    The package's own parents come before everything else: every import of a module runs them.

    Whether they are clean is not known: each is tried in a child of the fork server first.
    """
    known = list(modules)
    names = {module.name for module in known}
    counts: Counter[str] = Counter()
    for module in known:
        counts.update(_imported_by(module))
    least = max(_FEWEST, _SHARE * len(known))
    wanted = [name for name, count in counts.most_common() if count >= least]
    inside = [name for name in wanted if name in names]
    outside = [name for name in wanted if name not in names and not is_of_stdlib(name)]
    roots = sorted({name.partition(".")[0] for name in names})
    found = dict.fromkeys([*outside[: _MOST_CANDIDATES // 2], *roots, *inside])
    return list(found)[:_MOST_CANDIDATES]


def _imported_by(module: FoundModule) -> set[str]:
    if not module.path.endswith(".py"):
        return set()
    try:
        with open(module.path, "rb") as file:
            source = file.read(_MOST_BYTES)
    except OSError:
        return set()
    found: set[str] = set()
    for plain, origin in _IMPORT.findall(source):
        if origin:
            target = absolute_name(origin.decode("ascii", "replace"), module)
            if target:
                found.add(target)
        else:
            found.update(part.strip() for part in plain.decode("ascii", "replace").split(","))
    return found
