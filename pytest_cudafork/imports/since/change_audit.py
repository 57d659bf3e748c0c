"""The audit of a change: what is imported, what is said of it, and the record for the next one."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pytest_cudafork._version import version
from pytest_cudafork.counted import count_of
from pytest_cudafork.imports.audit.confirm import SAMPLE
from pytest_cudafork.imports.since.digests import Digests, in_words, modules_in
from pytest_cudafork.imports.since.git import GitError, Repository
from pytest_cudafork.imports.since.reached import Reach, why_all
from pytest_cudafork.imports.since.record import (
    ImportsRecord,
    SeenFile,
    SeenImport,
    read_record,
    write_record,
)
from pytest_cudafork.imports.since.sources import Written, written_in
from pytest_cudafork.imports.since.suspects import Suspected
from pytest_cudafork.imports.values.installed import installed_versions, is_installed
from pytest_cudafork.imports.values.records import ImportRecord
from pytest_cudafork.imports.values.settings import AuditSettings
from pytest_cudafork.imports.values.targets import FoundModule, Target

_SOURCES = (".py", ".pyw")
_SHOWN = 5


class Chosen(NamedTuple):
    """What is imported of one package.

    Attributes:
        package: Its name.
        wanted: The imports, each with a changed file that it can reach; "" where all are wanted.
        number: How many there are altogether.
        why_all: Why all of them are imported; "" if they were chosen.
        old: The verdicts of the others, those that were not clean.
        unsettled: Those that are wanted for a change that git does not tell of, and that an earlier
            audit has seen already; each with the file.

    """

    package: str
    wanted: Mapping[Target, str]
    number: int
    why_all: str
    old: Mapping[str, str]
    unsettled: Mapping[str, str] = {}


class ChangeAudit:
    """An audit of what the files changed since a commit can reach.

    Args:
        ref: The commit.
        found: The modules of each package.
        settings: How they are imported.
        folder: Where the session or the command is: a folder of the repository.

    Raises:
        GitError: Git is missing, there is no such commit, or a package is not in the repository.

    """

    def __init__(
        self,
        ref: str,
        found: Mapping[str, Sequence[FoundModule]],
        settings: AuditSettings,
        folder: str,
    ) -> None:
        self._started_ns = time.time_ns()
        self._found = found
        self._repository = Repository(folder)
        self.change = self._repository.changed_since(ref)
        self._digests = Digests(self._repository.root)
        for package, modules in found.items():
            self._check_place(package, modules)
        self._about = self._about_now(settings)
        self._records = {package: read_record(self._file_of(package)) for package in found}
        self._modules = {
            package: {each.name: self._name_of(each.path) for each in modules}
            for package, modules in found.items()
        }
        for modules_of in self._modules.values():
            self._digests.of_all(filter(None, modules_of.values()))
        self.chosen: list[Chosen] = []
        """What is imported, when that was asked."""

    def _check_place(self, package: str, modules: Sequence[FoundModule]) -> None:
        root = self._repository.root
        path = next((each.path for each in modules if each.path), "")
        if not os.path.realpath(path).startswith(f"{root}/"):
            place = f"which is not in the repository {root}"
        elif is_installed(path) or self._repository.ignores(path):
            place = f"which the repository {root} does not track"
        else:
            return
        raise GitError(
            f"{package} is imported from {os.path.dirname(path) or 'no file'}, {place}: install it "
            "editable (pip install -e .), or start where its source is on the module search path"
        )

    def _about_now(self, settings: AuditSettings) -> dict[str, Any]:
        root = self._repository.root
        folders = {os.path.realpath(each or os.curdir) for each in sys.path}
        return {
            "plugin": version,
            "python": " ".join(sys.version.split()),
            "device": settings.device,
            "installed": installed_versions(root),
            "search_path": {
                os.path.relpath(each, root): modules_in(each)
                for each in sorted(folders)
                if f"{each}/".startswith(f"{root}/") and not is_installed(f"{each}/")
            },
        }

    def _file_of(self, package: str) -> str:
        return os.path.join(self._repository.own_folder, f"imports-{package}.json")

    def _name_of(self, path: str) -> str:
        names = self._digests.names(path) if path else ()
        return names[-1] if names else ""

    # -- before the imports ----------------------------------------------------------------------

    def choose(self, targets: Sequence[Target]) -> list[Target]:
        """Return those of all imports that the change can reach, in their order."""
        by_package: dict[str, list[Target]] = {package: [] for package in self._found}
        for target in targets:
            by_package[target.package].append(target)
        self.chosen = [self._choose(package, own) for package, own in by_package.items()]
        wanted = {target for each in self.chosen for target in each.wanted}
        return [target for target in targets if target in wanted]

    def _choose(self, package: str, targets: Sequence[Target]) -> Chosen:
        record, modules = self._records[package], self._modules[package]
        reason = why_all(record, self._about, modules, targets)
        if not reason and record is not None:
            reach = Reach(record, self._changed(record))
            if reach.by_all:
                reason = f"{in_words(reach.by_all)} has changed, which imports share"
            else:
                found = {each: reach.file_for(each.nodeid) for each in targets}
                unsettled = {
                    each.nodeid: min(suspects)
                    for each, file in found.items()
                    if file is None and (suspects := record.imports[each.nodeid].suspects)
                }
                wanted = {
                    each: unsettled.get(each.nodeid, file or "")
                    for each, file in found.items()
                    if file is not None or each.nodeid in unsettled
                }
                rest = {each.nodeid for each in targets}.difference(t.nodeid for t in wanted)
                old = {name: seen.verdict for name, seen in record.imports.items() if name in rest}
                return Chosen(package, wanted, len(targets), "", _not_clean(old), unsettled)
        return Chosen(package, dict.fromkeys(targets, ""), len(targets), reason, {})

    def _changed(self, record: ImportsRecord) -> set[str]:
        """Return the files that differ from the commit, and those that differ from the record."""
        within = tuple(self.change.folders)
        other = self._differing(record)
        other.update(path for path in record.files if path.startswith(within))
        new_or_gone = [each for each in self.change.appeared if each not in record.files]
        return other.union(self.change.files, self._digests.naming(new_or_gone, record.files))

    def _differing(self, record: ImportsRecord) -> set[str]:
        now = self._digests.of_all(record.files)
        return {path for path, seen in record.files.items() if now[path] != seen.digest}

    def _untold(self, record: ImportsRecord | None) -> frozenset[str]:
        """Return the files that differ from the record and of which git does not tell.

        Those that it ignores, those outside the repository, and what can be imported from folders.
        A file that git keeps and that is as in the commit is not of this change.
        """
        if record is None:
            return frozenset()
        within = tuple(self.change.folders)
        differing = self._differing(record).difference(self.change.files)
        untold = {path for path in differing if not path.startswith(within)}
        return frozenset(untold - self._repository.tracked if untold else ())

    @property
    def few(self) -> bool:
        """Whether so few are imported that each may have a fresh interpreter of its own.

        As many as would be confirmed by one: a fork server would not save anything.
        """
        return sum(len(each.wanted) for each in self.chosen) <= SAMPLE

    def lines(self, *, full: bool = False) -> list[str]:
        """Say what is imported, and why; ``full``: each module with the file that reaches it."""
        change = self.change
        name = change.ref if change.ref == change.commit else f"{change.ref} ({change.commit})"
        files = count_of(len(change.files), "changed file")
        lines = []
        for each in self.chosen:
            if each.why_all:
                lines.append(
                    f"since {name}: all {each.number} imports of {each.package}: {each.why_all}"
                )
                continue
            lines.append(
                f"since {name}: {files}, which {len(each.wanted)} of {each.number} imports of "
                f"{each.package} can reach; the others are not judged"
            )
            if each.unsettled:
                lines.append(f"  imported again until clean: {_some(each.unsettled)}")
            if each.old:
                lines.append(f"  not clean when they were imported last: {_some(each.old)}")
            for target, file in each.wanted.items() if full else ():
                lines.append(f"  {target.nodeid}: {in_words(file) or 'too little is known of it'}")
        return lines

    def to_plain(self) -> dict[str, Any]:
        """Return what was chosen as plain data."""
        return {
            "ref": self.change.ref,
            "commit": self.change.commit,
            "changed": list(self.change.files),
            "chosen": {
                each.package: {
                    "imports": len(each.wanted),
                    "of": each.number,
                    "why_all": each.why_all,
                }
                for each in self.chosen
            },
        }

    # -- after the imports -----------------------------------------------------------------------

    def write(self, records: Iterable[ImportRecord]) -> list[str]:
        """Write what the imports did into the record of each package.

        Args:
            records: Those of an audit that came to its end.

        Returns:
            The files.

        Raises:
            OSError: One cannot be written.

        """
        by_package: dict[str, list[ImportRecord]] = {each.package: [] for each in self.chosen}
        for record in records:
            by_package[record.package].append(record)
        written = []
        for each in self.chosen:
            path = self._file_of(each.package)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            write_record(path, self._updated(each, by_package[each.package]))
            written.append(path)
        return written

    def _updated(self, chosen: Chosen, records: Iterable[ImportRecord]) -> ImportsRecord:
        before = self._records[chosen.package]
        old = ImportsRecord(self._about) if before is None or chosen.why_all else before
        suspected = Suspected(before, self._untold(before))
        modules = self._modules[chosen.package]
        exist = {each.nodeid for each in chosen.wanted}
        imports = {
            name: seen
            for name, seen in old.imports.items()
            if name not in exist and name.partition("::")[2].partition("[")[0] in modules
        }
        # what was to be imported and was not (-k, --deselect) is not known any more
        imports.update({nodeid: suspected.not_imported(nodeid) for nodeid in exist})
        shared = set(old.shared)
        for record in records:
            nodeid = Target(record.package, record.module, record.without).nodeid
            files = record.files
            names = None if files is None else self._all_names(files.own)
            seen = SeenImport(names, record.verdict.value, record.where)
            imports[nodeid] = suspected.imported(nodeid, seen)
            shared.update(() if files is None else self._all_names(files.shared))
        own = (seen.files for seen in imports.values() if seen.files is not None)
        used = shared.union(filter(None, modules.values()), *own)
        return ImportsRecord(
            self._about, modules, self._seen_files(chosen.package, used, old), imports,
            frozenset(shared),
        )  # fmt: skip

    def _all_names(self, paths: Iterable[str]) -> frozenset[str]:
        return frozenset(name for path in paths for name in self._digests.names(path))

    def _seen_files(
        self, package: str, names: Iterable[str], old: ImportsRecord
    ) -> dict[str, SeenFile]:
        sorted_names = sorted(names)
        unsure = self._digests.changed_meanwhile(sorted_names, self._started_ns)
        by_name = {self._name_of(each.path): each for each in self._found[package] if each.path}
        seen = {}
        for name in sorted_names:
            digest = "" if name in unsure else self._digests.of(name)
            before = old.files.get(name)
            if before is not None and before.digest == digest:
                seen[name] = before
                continue
            module = by_name.get(name)
            imports, is_dynamic = _written(module) if module else Written((), is_dynamic=False)
            seen[name] = SeenFile(digest, imports, is_dynamic)
        return seen


def _written(module: FoundModule) -> Written:
    """Read what a module's source may import; of what is no source nothing is known."""
    if not module.path.endswith(_SOURCES):
        return Written((), is_dynamic=True)
    try:
        with open(module.path, "rb") as file:
            return written_in(file.read(), module)
    except OSError:
        return Written((), is_dynamic=True)


def _not_clean(verdicts: Mapping[str, str]) -> dict[str, str]:
    return {name: words for name, words in verdicts.items() if words not in ("", "clean")}


def _some(imports: Mapping[str, str]) -> str:
    shown = ", ".join(f"{name} ({in_words(why)})" for name, why in list(imports.items())[:_SHOWN])
    return shown + (f" and {len(imports) - _SHOWN} more" if len(imports) > _SHOWN else "")
