"""The summary of an audit, line by line, and the files that are written at its end.

Pytest's section "imports" and the audit's command line show the same lines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from pytest_cudafork.baseline.file import BaselineError
from pytest_cudafork.counted import count_of
from pytest_cudafork.imports.graph.cuts import CHANGE_IT, CHANGE_IT_TOO, CulpritCuts, cut_lines
from pytest_cudafork.imports.report.findings import Difference, Findings
from pytest_cudafork.imports.since.change_audit import ChangeAudit
from pytest_cudafork.imports.values.left_behind import RunningThread
from pytest_cudafork.imports.values.records import ImportRecord, ImportVerdict, Outcome
from pytest_cudafork.observe.story.paths import short_path
from pytest_cudafork.settings.import_options import STRICT

MOST_NAMES = 5
"""Of modules or threads that have something in common, where not all are asked for."""


class Line(NamedTuple):
    """One line; ``tone`` is "bad", "warn", "good" or ""."""

    text: str
    tone: str = ""

    @property
    def markup(self) -> dict[str, bool]:
        """The line's looks, as pytest's terminal takes them."""
        return {
            "bad": {"red": True, "bold": True},
            "warn": {"yellow": True},
            "good": {"green": True},
        }.get(self.tone, {})


class _Limits(NamedTuple):
    """How much is shown."""

    lines: int = 30
    in_full: int = 10
    reasons: int = 5
    names: int = MOST_NAMES

    def named(self, names: Sequence[str]) -> str:
        return named(names, self.names)


_SHORT = _Limits()
_ALL = _Limits(*[1 << 60] * len(_SHORT))


def summary_lines(findings: Findings, *, full: bool = False) -> list[Line]:
    """Return the summary: culprit lines with what to do, differences, confirmations, counts.

    Args:
        findings: What was found.
        full: Whether to name every line and every module, however many there are.

    """
    limits = _ALL if full else _SHORT
    return [
        *_groups(findings, findings.culprits, limits),
        *_trouble(findings, limits),
        *_not_importable(findings, limits),
        *_so_far(findings, limits),
        *(line for each in findings.differences for line in _difference(findings, each, limits)),
        *_confirmations(findings),
        *_stale(findings),
        *since_lines(findings.change, full=full),
        *_counts(findings),
    ]


def since_lines(change: ChangeAudit | None, *, full: bool = False) -> list[Line]:
    """Say which imports a change was found to reach; [] where all were asked for."""
    return [] if change is None else [Line(text) for text in change.lines(full=full)]


def _groups(findings: Findings, culprits: Iterable[CulpritCuts], limits: _Limits) -> Iterator[Line]:
    """Tell each culprit line with what to do about it; only the first ones in full."""
    groups = list(culprits)
    explained = False
    for number, group in enumerate(groups[: limits.lines]):
        accepted = _accepted(findings, group.modules)
        headline, *rest = cut_lines(group, findings.base)
        if accepted:
            every = accepted == len(group.modules)
            headline += f", {'all' if every else f'{accepted} of them'} in the baseline"
        bad = accepted < len(group.modules)
        yield Line(headline, "bad" if bad else "warn")
        for text in rest if number < limits.in_full else ():
            again = text.strip() == CHANGE_IT
            yield Line(f"  {CHANGE_IT_TOO}" if again and explained else text)
            explained = explained or again
    if len(groups) > limits.lines:
        yield Line(f"... and {len(groups) - limits.lines} more lines (-v names them)")


def _accepted(findings: Findings, modules: Iterable[str]) -> int:
    # with --dist=each a module has a record from each worker
    accepted = {r.module for r in findings.main if findings.outcome(r) is Outcome.ACCEPTED}
    return len(accepted.intersection(modules))


def _trouble(findings: Findings, limits: _Limits) -> Iterator[Line]:
    """Name the modules about which little can be said, those with one reason together."""
    groups: dict[tuple[str, str], list[ImportRecord]] = {}
    for record in findings.records:
        if record.verdict in _TROUBLE:
            reason = record.reason
            if record.touches and not record.verdict.touched:
                where = short_path(record.where, findings.base)
                reason += f"; before that it initialized CUDA at {where}"
            groups.setdefault((_TROUBLE[record.verdict], reason), []).append(record)
    for (what, reason), records in list(groups.items())[: limits.in_full]:
        accepted = all(findings.outcome(record) is Outcome.ACCEPTED for record in records)
        tone = "warn" if accepted else "bad"
        yield Line(f"{what}: {limits.named(sorted(map(_name, records)))}: {reason}", tone)
    yield from _left([len(each) for each in groups.values()][limits.in_full :])


_TROUBLE = {
    ImportVerdict.TOUCHES_THEN_CRASHES: "initializes CUDA, then crashes",
    ImportVerdict.CRASHED: "crashed",
    ImportVerdict.TIMED_OUT: "timed out",
    ImportVerdict.NOT_OBSERVABLE: "not observable",
}


def _not_importable(findings: Findings, limits: _Limits) -> Iterator[Line]:
    reasons: dict[str, list[str]] = {}
    for record in findings.main:
        if record.verdict is ImportVerdict.NOT_IMPORTABLE:
            reasons.setdefault(record.reason, []).append(_name(record))
    tone = "bad" if findings.settings.strict else ""
    groups = sorted(reasons.items(), key=lambda group: (-len(group[1]), group[0]))
    for reason, names in groups[: limits.reasons]:
        yield Line(f"not importable: {limits.named(sorted(names))}: {reason}", tone)
    yield from _left([len(names) for _, names in groups[limits.reasons :]])
    if reasons and not findings.settings.strict:
        count = sum(map(len, reasons.values()))
        these = "it" if count == 1 else f"these {count}"
        yield Line(
            f"nothing is known of {these}: with {STRICT.flag} (imports --strict) such modules fail"
        )


def _left(counts: Sequence[int]) -> Iterator[Line]:
    """Say how many modules are not named, for how many reasons."""
    if counts:
        reasons = count_of(len(counts), "more reason")
        yield Line(f"... and {_modules(sum(counts))} for {reasons} (-v names them)")


def _so_far(findings: Findings, limits: _Limits) -> Iterator[Line]:
    """Name the modules that are clean while threads which they have started still run."""
    groups: dict[tuple[str, ...], list[ImportRecord]] = {}
    for record in findings.records:
        if record.so_far:
            key = tuple(sorted(thread.where for thread in record.running))
            groups.setdefault(key, []).append(record)
    for records in list(groups.values())[: limits.in_full]:
        threads = records[0].running
        shown = limits.named([thread_words(each, findings.base) for each in threads])
        run = f"{count_of(len(threads), 'thread')} still {'runs' if len(threads) == 1 else 'run'}"
        names = limits.named(sorted(map(_name, records)))
        yield Line(f"clean so far: {names}: {run} ({shown})", "warn")
    yield from _left([len(each) for each in groups.values()][limits.in_full :])


def named(names: Sequence[str], most: int = MOST_NAMES) -> str:
    """Return the first names, and how many there are beyond."""
    left = len(names) - most
    return ", ".join(names[:most]) + (f" and {left} more" if left > 0 else "")


def thread_words(thread: RunningThread, base: str) -> str:
    """Say which thread it is, and which line has started it."""
    kind = "daemon " if thread.daemon else ""
    at = (
        f"started at {short_path(thread.where, base)}"
        if thread.where
        else "nobody saw who started it"
    )
    return f"{kind}{thread.name}, {at}"


def _difference(findings: Findings, found: Difference, limits: _Limits) -> Iterator[Line]:
    name = " and ".join(found.library.split("+"))
    if not found.installed:
        yield Line(f"without {name}: it is not installed here, so to hide it changes nothing")
        return
    for where, modules in found.freed.items():
        yield Line(
            f"without {name}: {_modules(len(modules))} no longer touch CUDA "
            f"({short_path(where, findings.base)}): {name} makes the difference"
        )
    if found.culprits:
        yield Line(f"only without {name}:")
        for line in _groups(findings, found.culprits, limits):
            yield Line(f"  {line.text}", line.tone)
    if found.lost:
        lost = _modules(len(found.lost))
        yield Line(f"without {name}: {lost} cannot be imported: {limits.named(found.lost)}")
    if found.same:
        yield Line(f"without {name}: the same verdicts")


def _confirmations(findings: Findings) -> Iterator[Line]:
    """Say how much of this does not rest on the fork server alone."""
    checked = [record for record in findings.records if record.confirmed]
    lines = {record.where for record in checked if record.verdict.touched}
    clean = sum(record.verdict is ImportVerdict.CLEAN and not record.so_far for record in checked)
    so_far = sum(record.so_far for record in checked)
    ends = sum(
        record.verdict in (ImportVerdict.CRASHED, ImportVerdict.TIMED_OUT) for record in checked
    )
    errors = sum(record.verdict is ImportVerdict.NOT_IMPORTABLE for record in checked)
    parts = [
        count_of(len(lines), "culprit line") if lines else "",
        count_of(clean, "clean module") if clean else "",
        f"{_modules(so_far)} clean so far" if so_far else "",
        count_of(ends, "crash or time limit", "crashes and time limits") if ends else "",
        count_of(errors, "failing import") if errors else "",
    ]
    text = ", ".join(filter(None, parts))
    if text:
        yield Line(f"confirmed in a fresh interpreter: {text}")
    for record, artifact in findings.checked:
        if artifact:
            now = f"{record.verdict.value}{f' at {record.where}' if record.where else ''}"
            yield Line(
                f"artifact: {_name(record)} was {artifact} when forked from the template; a fresh "
                f"interpreter says {now}, which counts",
                "warn",
            )


def _stale(findings: Findings) -> Iterator[Line]:
    if not findings.settings.baseline or findings.settings.update:
        return
    name = short_path(findings.settings.baseline, findings.base)
    for entry in findings.stale:
        hidden = f" (without {entry.without})" if entry.without else ""
        yield Line(f"remove from {name}: {entry.module}{hidden}, it is clean or gone", "warn")


def _counts(findings: Findings) -> Iterator[Line]:
    outcomes = Counter(findings.outcome(record) for record in findings.records)
    bad = bool(outcomes[Outcome.FAILED] + outcomes[Outcome.ERROR])
    for (package, library), counts in findings.counts.items():
        hidden = f" without {' and '.join(library.split('+'))}" if library else ""
        parts = [
            f"{counts[verdict]} {_WORDS[verdict]}" for verdict in ImportVerdict if counts[verdict]
        ]
        own = (each for each in findings.of_library(library) if each.package == package)
        so_far = sum(record.so_far for record in own)
        if so_far:
            parts[0] += f" ({so_far} of them so far)"
        text = f"{package}{hidden}: {_modules(sum(counts.values()))}: {', '.join(parts)}"
        yield Line(text, "bad" if bad else "good")


_WORDS = {
    ImportVerdict.CLEAN: "clean",
    ImportVerdict.TOUCHES: "initialize CUDA",
    ImportVerdict.TOUCHES_THEN_FAILS: "initialize CUDA, then fail to import",
    ImportVerdict.TOUCHES_THEN_CRASHES: "initialize CUDA, then crash",
    ImportVerdict.NOT_IMPORTABLE: "not importable",
    ImportVerdict.NOT_OBSERVABLE: "not observable",
    ImportVerdict.CRASHED: "crashed",
    ImportVerdict.TIMED_OUT: "timed out",
}


def write_results(findings: Findings) -> list[Line]:
    """Write the picture and the baseline, as far as they are asked for.

    A baseline is only written by an audit that came to its end.

    Args:
        findings: What was found.

    Returns:
        What was written and what could not be, in words; the latter with the tone "bad".

    """
    lines = []
    settings = findings.settings
    if settings.graph:
        lines.append(_write_graph(findings))
    if findings.change is not None and findings.complete:
        try:
            findings.change.write(findings.records)
        except OSError as error:
            lines.append(Line(f"what the imports read cannot be kept: {error}", "warn"))
    if settings.update and findings.complete:
        updated = findings.baseline.updated(findings.records, findings.names, findings.base)
        try:
            updated.write(settings.baseline)
            count = len(updated.entries)
            lines.append(
                Line(f"baseline: {settings.baseline} ({count_of(count, 'entry', 'entries')})")
            )
        except BaselineError as error:
            lines.append(Line(str(error), "bad"))
    elif settings.update:
        lines.append(Line("the baseline was not written: the audit did not come to its end", "bad"))
    return lines


def _write_graph(findings: Findings) -> Line:
    from pytest_cudafork.imports.graph.picture import write_dot, write_html

    path = findings.settings.graph
    write = write_dot if path.endswith(".dot") else write_html
    try:
        write(path, findings.graph, findings.main, findings.culprits, findings.base)
    except OSError as error:
        return Line(f"the graph cannot be written: {error}", "bad")
    return Line(f"graph: {path}")


def _name(record: ImportRecord) -> str:
    return f"{record.module}[without {record.without}]" if record.without else record.module


def _modules(count: int) -> str:
    return count_of(count, "module")
