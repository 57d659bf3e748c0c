"""The audit's tests: one for each module of a package, with the outcome that its verdict means.

The package that is audited is never imported in this process.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cudafork.compat.pytest_internals import native_representation
from pytest_cudafork.imports.audit.confirm import CheckedRecord
from pytest_cudafork.imports.report.story import headline_of, story_lines
from pytest_cudafork.imports.values.records import Outcome, outcome_of
from pytest_cudafork.imports.values.targets import FoundModule, Target

if TYPE_CHECKING:
    from pytest_cudafork.imports.plugin import ImportAudit

AUDIT = pytest.StashKey["ImportAudit"]()


class ImportFailure(Exception):
    """The import of a module is not as it should be; Recoverable, it happened elsewhere."""


class PackageNode(pytest.Collector):
    """A package; below it is a test for each of its modules."""

    targets: Sequence[Target]
    modules: dict[str, FoundModule]

    def collect(self) -> Iterator[ImportItem]:
        """Give the tests."""
        for target in self.targets:
            item: ImportItem = ImportItem.from_parent(
                self, name=target.nodeid.removeprefix(f"{target.package}::")
            )
            item.target = target
            item.module = self.modules[target.module]
            yield item


def package_node(
    session: pytest.Session, package: str, modules: Iterable[FoundModule], targets: Sequence[Target]
) -> PackageNode:
    """Return the node of a package, for those of its targets that are wanted."""
    node: PackageNode = PackageNode.from_parent(session, name=package, nodeid=package)
    node.modules = {module.name: module for module in modules}
    node.targets = [target for target in targets if target.package == package]
    return node


class ImportItem(pytest.Item):
    """The test of one module."""

    target: Target
    module: FoundModule
    checked: CheckedRecord | None = None

    @property
    def audit(self) -> ImportAudit:
        """The audit that it is a part of."""
        return self.config.stash[AUDIT]

    def answer(self) -> CheckedRecord:
        """Return what became of the import; waits for it."""
        if self.checked is None:
            self.checked = self.audit.coordinator.answer(self.target)
        return self.checked

    def reportinfo(self) -> tuple[str, int, str]:
        """Return the module's file, and a title."""
        file = self.module.path
        path = file if os.path.isfile(file) else str(self.config.rootpath)
        return path, 0, f"import {self.name}"

    def setup(self) -> None:
        """Fail with an error if nothing can be said of the import."""
        checked = self.answer()
        if self._outcome(checked) is Outcome.ERROR:
            pytest.fail("\n".join(story_lines(checked.record)), pytrace=False)

    def runtest(self) -> None:
        """Have the outcome that the verdict means."""
        checked = self.answer()
        outcome = self._outcome(checked)
        if outcome is Outcome.ACCEPTED:
            raise pytest.xfail.Exception(f"in the baseline {self.audit.baseline_name}")
        if outcome is Outcome.SKIPPED:
            raise pytest.skip.Exception(checked.record.reason, _use_item_location=True)
        if outcome is Outcome.FAILED:
            raise ImportFailure(headline_of(checked.record))

    def _outcome(self, checked: CheckedRecord) -> Outcome:
        record = checked.record
        accepted = self.audit.accepts(record) and not self.config.getoption("runxfail", False)
        return outcome_of(record.verdict, strict=self.audit.settings.strict, accepted=accepted)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *args: Any) -> Any:
        """Return the story of the import, with no frame of the audit or of pytest."""
        if self.checked is None or not isinstance(excinfo.value, ImportFailure):
            return super().repr_failure(excinfo, *args)
        text = "\n".join(story_lines(self.checked.record))
        return native_representation(self.reportinfo()[0], 1, str(excinfo.value), text)


def take_names(config: pytest.Config, packages: Iterable[str]) -> list[str]:
    """Take the audit's tests out of the arguments; return them, packages spelled as such.

    pytest would look for files of these names.
    """
    bases = {name: Path(config.rootpath, name) for name in packages}
    taken, left = [], []
    for arg in map(str, config.args):
        base, colons, name = arg.partition("::")
        path = Path(os.path.normpath(config.invocation_params.dir / base))
        package = next((key for key, own in bases.items() if base == key or path == own), None)
        if colons and package is not None:
            taken.append(f"{package}::{name}")
        else:
            left.append(arg)
    config.args[:] = left
    return taken


def select(targets: Sequence[Target], names: Sequence[str]) -> list[Target]:
    """Return the targets that are named, all if none is; a module stands for all its tests.

    Raises:
        pytest.UsageError: There is no such test.

    """
    if not names:
        return list(targets)
    wanted: set[Target] = set()
    for name in names:
        matching = [
            each for each in targets if name in (each.nodeid, f"{each.package}::{each.module}")
        ]
        if not matching:
            raise pytest.UsageError(
                f"not found: {name}\n(no such module among the {len(targets)} tests of the import "
                "audit; --collect-only -q lists them)"
            )
        wanted.update(matching)
    return [target for target in targets if target in wanted]
