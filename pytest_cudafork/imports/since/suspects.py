"""Changes that no commit has: an import that they broke is repeated until it is clean.

Git says of the files that it keeps how they differ from a commit, again and again. A file that it
ignores, or that lies outside the repository, differs from the record of the last audit alone, so
only once: the next audit would take for granted what that change has broken.
"""

from __future__ import annotations

import dataclasses

from pytest_cudafork.imports.since.record import ImportsRecord, SeenImport

_CLEAN = "clean"


class Suspected:
    """Which of these changes an import is not clean since.

    Args:
        before: What was known before this audit; None: nothing.
        untold: The files that differ from that and of which git does not tell.

    """

    def __init__(self, before: ImportsRecord | None, untold: frozenset[str]) -> None:
        self._before = ImportsRecord({}) if before is None else before
        self._untold = untold

    def not_imported(self, nodeid: str) -> SeenImport:
        """Return what is known of an import that was to be repeated and was not."""
        old = self._before.imports.get(nodeid, SeenImport(None))
        return dataclasses.replace(
            old, files=None, suspects=old.suspects | self._reaching(old.files)
        )

    def imported(self, nodeid: str, seen: SeenImport) -> SeenImport:
        """Return what an import has done, with what it is suspected to be not clean since."""
        if seen.verdict == _CLEAN:
            return seen
        old = self._before.imports.get(nodeid, SeenImport(None))
        was_so = old.verdict not in ("", _CLEAN) and old.where == seen.where
        if was_so and not old.suspects:
            return seen  # it was not clean before the change, either
        files = None if seen.files is None or old.files is None else seen.files | old.files
        return dataclasses.replace(seen, suspects=old.suspects | self._reaching(files))

    def _reaching(self, files: frozenset[str] | None) -> frozenset[str]:
        """Return those of the changes that an import may have come upon; None: of any files."""
        if files is None:
            return self._untold
        return self._untold & (files | self._before.shared)
