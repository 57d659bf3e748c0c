"""Which imports changed files can reach, as far as a record tells."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from pytest_cudafork.imports.graph.reach import distances, reversed_links
from pytest_cudafork.imports.since.record import ImportsRecord
from pytest_cudafork.imports.values.targets import Target

_SHOWN = 3
_WORDS = {"plugin": "pytest-cudafork", "python": "Python", "device": "the device"}


def why_all(
    record: ImportsRecord | None,
    about: Mapping[str, Any],
    modules: Mapping[str, str],
    targets: Iterable[Target],
) -> str:
    """Return why a record does not tell what changed files can reach; "" if it does.

    Args:
        record: The record; None if there is none.
        about: What the audit is about, as ``ImportsRecord.about``.
        modules: The file of each module that there is now.
        targets: What there is to import now.

    """
    if record is None:
        return "there is no record of an earlier audit"
    for key, words in _WORDS.items():
        if record.about.get(key) != about[key]:
            return f"{words} was {record.about.get(key)} in the last audit and is {about[key]} now"
    installed = _difference(record.about["installed"], about["installed"])
    if installed:
        return f"installed packages have changed: {_some(installed)}"
    for folder, names in about["search_path"].items():
        before = record.about["search_path"].get(folder, names)
        other = sorted(set(names) ^ set(before))
        if other:
            return f"there are other modules to import in {folder}: {_some(other)}"
    new = [each.nodeid for each in targets if each.nodeid not in record.imports]
    if new:
        return f"not known yet, and others may find it by its name: {_some(new)}"
    moved = [name for name, path in modules.items() if record.modules.get(name, path) != path]
    return f"no longer in the same file: {_some(moved)}" if moved else ""


def _difference(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    names = sorted({*before, *now})
    return [name for name in names if before.get(name) != now.get(name)]


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


class Reach:
    """What changed files can reach.

    An import reaches what it executed and read itself. Of what the fork server had executed before,
    it is not known which part an import uses: there it is what its sources name, and where one of
    them may import what it does not name, all of it.

    Args:
        record: It was found to tell.
        changed: The files that have changed.

    """

    def __init__(self, record: ImportsRecord, changed: Collection[str]) -> None:
        self._record = record
        self._changed = frozenset(changed)
        self._module_of = {path: name for name, path in record.modules.items() if path}
        shared = self._changed & record.shared
        unknown = shared.difference(self._module_of)
        self.by_all = min(unknown) if unknown else ""
        """A changed file that each import may use; "" if there is none."""
        self._leading = self._leading_to({self._module_of[path] for path in shared - unknown})
        self._foreign = any(self._is_foreign(path) for path in record.shared)

    def file_for(self, nodeid: str) -> str | None:
        """Return a changed file that an import can reach; None if there is none.

        "" stands for an import of which too little is known.
        """
        files = self._record.imports[nodeid].files
        if files is None:
            return ""
        own = files & self._changed
        if own:
            return min(own)
        if self.by_all or not self._leading:
            return self.by_all or None
        module = nodeid.partition("::")[2].partition("[")[0]
        passed = {module, *(self._module_of[path] for path in files if path in self._module_of)}
        is_open = self._foreign or any(map(self._is_foreign, files))
        if is_open or not self._leading.isdisjoint(passed):
            return min(self._changed & self._record.shared)
        return None

    def _is_foreign(self, path: str) -> bool:
        """Whether it is code whose imports nobody has read."""
        return path not in self._module_of and path.endswith((".py", ".pyw", ".so"))

    def _leading_to(self, goals: Collection[str]) -> frozenset[str]:
        """Return the modules whose sources lead to one of the goals, or may lead anywhere."""
        if not goals:
            return frozenset()
        links: dict[str, set[str]] = defaultdict(set)
        wild = set()
        for name, path in self._record.modules.items():
            links[name].update(self._modules_in(name))
            if not path:
                continue  # a namespace has nothing to execute
            seen = self._record.files.get(path)
            if seen is None or seen.is_dynamic:
                wild.add(name)
            for other in () if seen is None else seen.imports:
                links[name].update(self._modules_in(other))
        return frozenset(distances(reversed_links(links), [*goals, *wild]))

    def _modules_in(self, name: str) -> Iterable[str]:
        """Return the modules that an import of a name runs: itself, if it is one, and parents."""
        parts = accumulate(name.split("."), "{}.{}".format)
        return [part for part in parts if part in self._record.modules]
