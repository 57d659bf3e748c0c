"""Answers for all targets of an audit, one auditor for each package and hidden library.

Here a target's way is put together: the auditor imports it, in a child of a fork server;
where that should be confirmed, a fresh interpreter imports it once more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from pytest_cudafork.imports.audit.auditor import Auditor, why_not
from pytest_cudafork.imports.audit.confirm import CheckedRecord, Confirmer
from pytest_cudafork.imports.audit.preloads import preloads_of
from pytest_cudafork.imports.values.records import ImportVerdict
from pytest_cudafork.imports.values.settings import AuditSettings
from pytest_cudafork.imports.values.targets import FoundModule, Target


class _Group:
    """The auditor for one package and one hidden library, and what is left for it to do."""

    def __init__(self, auditor: Auditor, confirmer: Confirmer, left: set[str]) -> None:
        self.auditor = auditor
        self.confirmer = confirmer
        self.left = left
        self.checked: dict[str, CheckedRecord] = {}


class AuditCoordinator:
    """Answers for the targets of a session; each group of them has a fork server of its own."""

    def __init__(
        self,
        settings: AuditSettings,
        found: Mapping[str, Sequence[FoundModule]],
        *,
        confirm: bool = True,
        afresh: bool = False,
    ) -> None:
        """Take what is common to all; nothing is started before the first question.

        Args:
            settings: How modules are imported.
            found: The modules of each package.
            confirm: Whether fresh interpreters confirm what forks of the fork server said.
            afresh: Whether to have all modules imported by fresh interpreters and none by forks,
                which is quicker for very few.

        """
        self._settings = settings
        self._found = found
        self._confirm = confirm
        self._afresh = afresh
        self._expected: dict[tuple[str, str], list[str]] = {}
        self._groups: dict[tuple[str, str], _Group] = {}

    @property
    def words(self) -> str:
        """With which driver, and how many at once."""
        words = {"real": "real driver", "none": "no driver", "absent": "phantom (no GPU)"}
        device = self._settings.device
        jobs = self._settings.jobs
        return f"{words.get(device, f'phantom ({device})')}, {jobs} at a time"

    def check_hidden(self, libraries: Sequence[str]) -> None:
        """Check that libraries can be hidden; asks a process of the audit, if there are any.

        Raises:
            ValueError: One of them cannot, or nothing can be observed.

        """
        names = dict.fromkeys(name for library in libraries for name in library.split("+"))
        reason = why_not(self._settings._replace(without="+".join(names))) if names else ""
        if reason:
            raise ValueError(reason)

    def expect(self, targets: Iterable[Target]) -> None:
        """Say which answers will be asked for, and in which order.

        With the first question of a group all its imports begin, and with the answer to the last
        one its fork server ends.
        """
        self._expected.clear()
        for target in targets:
            self._expected.setdefault((target.package, target.without), []).append(target.module)

    def ask(self, targets: Iterable[Target]) -> None:
        """Let imports begin whose answers will be asked for soon."""
        for target in targets:
            group = self._group(target)
            if target.module not in group.checked and not self._afresh:
                group.auditor.ask([target.module])

    def answer(self, target: Target) -> CheckedRecord:
        """Return what may be reported of a target; waits for it."""
        group = self._group(target)
        if target.module not in group.checked:
            group.checked[target.module] = self._check(group, target.module)
            group.left.discard(target.module)
            if self._expected and not group.left:
                group.auditor.close()
        return group.checked[target.module]

    def _check(self, group: _Group, module: str) -> CheckedRecord:
        auditor = group.auditor
        if self._afresh:
            record = auditor.import_afresh(module)
            known = record.verdict is not ImportVerdict.NOT_OBSERVABLE
            return CheckedRecord(dataclasses.replace(record, confirmed=known or None))
        record = auditor.record(module)
        if not self._confirm or module in auditor.inferred:
            return CheckedRecord(record)
        checked = group.confirmer.check(record, auditor.import_afresh)
        if checked.record.verdict is ImportVerdict.TIMED_OUT and checked.record.confirmed:
            auditor.skip_below(module)
        return checked

    def _group(self, target: Target) -> _Group:
        key = (target.package, target.without)
        if key not in self._groups:
            self._start(*key)
        return self._groups[key]

    def _start(self, package: str, without: str) -> None:
        modules = self._found[package]
        expected = self._expected.get((package, without), [])
        names = set(expected) or {module.name for module in modules}
        wanted = [each for each in modules if each.name in names]
        auditor = Auditor(
            package,
            self._settings._replace(without=without),
            preloads_of(wanted),
        )
        # Known before a process is started: Ctrl-C may come while that has its first orders.
        self._groups[package, without] = _Group(auditor, Confirmer(package, names), set(expected))
        if expected and not self._afresh:
            auditor.ask(expected)

    def close(self) -> None:
        """End all that runs."""
        for group in self._groups.values():
            group.auditor.close()
