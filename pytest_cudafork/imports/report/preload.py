"""Which modules a process may import that is forked afterwards, and what to heed: ``--preload``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from pytest_cudafork.counted import count_of
from pytest_cudafork.imports.graph.reach import distances
from pytest_cudafork.imports.report.findings import Findings
from pytest_cudafork.imports.report.story import headline_of
from pytest_cudafork.imports.report.summary import MOST_NAMES, Line, named, thread_words
from pytest_cudafork.imports.values.left_behind import WHOLE, EnvironmentRead
from pytest_cudafork.imports.values.records import ImportRecord, ImportVerdict
from pytest_cudafork.observe.story.paths import short_path

_MOST_LINES = 20


def preload_lines(findings: Findings, *, full: bool = False) -> list[Line]:
    """Return what to import in a process that is forked afterwards, what to heed, and what not to.

    Args:
        findings: Those of an audit that looked for traces.
        full: Whether to name everything, however much it is.

    """
    most = 1 << 60 if full else _MOST_LINES
    safe = [record for record in findings.main if is_safe(record)]
    names = widest(findings.graph.links, [record.module for record in safe])
    what = count_of(len(findings.main), "module")
    head = f"safe to import before forks: {len(safe)} of {what}"
    if names:
        shown = ",".join(names[: MOST_NAMES if not full else None])
        left = len(names) - MOST_NAMES
        more = f" and {left} more (-v names them)" if left > 0 and not full else ""
        head += f"; these import them all: {shown}{more}"
    return [
        Line(head, "good" if safe else "bad"),
        *_cut(list(_shared(safe)), most),
        *_cut(list(_environment(findings, safe)), most),
        *_cut(list(_unsafe(findings)), most),
    ]


def is_safe(record: ImportRecord) -> bool:
    """Whether a process that has imported a module may be forked: no touch, no thread of Python."""
    return record.verdict is ImportVerdict.CLEAN and not record.running


def widest(links: Mapping[str, Sequence[str]], names: Sequence[str]) -> list[str]:
    """Return few of the modules that import all of them, those that import most first."""
    left = set(names)
    reached = {name: left & distances(links, [name]).keys() for name in sorted(left)}
    found = []
    while left:
        best = max(reached, key=lambda name: (len(reached[name] & left), -len(name)))
        found.append(best)
        left -= reached.pop(best)
    return found


def _shared(safe: Iterable[ImportRecord]) -> Iterator[Line]:
    """Tell what forks would share, or lack, of modules that are safe otherwise."""
    descriptors: dict[str, list[str]] = {}
    threads: dict[str, list[str]] = {}
    for record in safe:
        if record.traces is not None:
            for target in dict.fromkeys(record.traces.descriptors):
                descriptors.setdefault(target, []).append(record.module)
            if record.traces.native_threads:
                names = ", ".join(sorted(set(record.traces.native_threads)))
                threads.setdefault(names, []).append(record.module)
    for target, modules in descriptors.items():
        yield Line(f"heed: forks share an open descriptor ({target}): {named(modules)}", "warn")
    for names, modules in threads.items():
        yield Line(f"heed: forks lack threads of C code ({names}): {named(modules)}", "warn")


def _environment(findings: Findings, safe: Iterable[ImportRecord]) -> Iterator[Line]:
    """Tell which variables have to be set before the imports; reads of the package come first."""
    reads: dict[tuple[str, str], tuple[EnvironmentRead, list[str]]] = {}
    for record in safe:
        for read in () if record.traces is None else record.traces.environment:
            _, modules = reads.setdefault((read.name, read.where), (read, []))
            modules.append(record.module)
    if reads:
        yield Line("read from the environment by imports (a change after that goes unnoticed):")
    others = {read: not findings.graph.module_at(_file_of(read)) for read, _ in reads.values()}
    order = sorted(reads.values(), key=lambda each: (others[each[0]], -len(each[1]), each[0].name))
    for read, modules in order:
        name = "all of it, copied" if read.name == WHOLE else read.name
        state = "" if read.is_set else " (not set here)"
        where = short_path(read.where, findings.base)
        yield Line(f"  {name}{state}, {where}: {named(modules)}")


def _file_of(read: EnvironmentRead) -> str:
    return read.where.rpartition(":")[0]


def _unsafe(findings: Findings) -> Iterator[Line]:
    """Tell why the others are not safe; those with one reason together."""
    reasons: dict[str, list[str]] = {}
    for record in findings.main:
        if is_safe(record):
            continue
        if record.verdict is ImportVerdict.CLEAN:
            threads = ", ".join(thread_words(each, findings.base) for each in record.running)
            reason = f"leaves {count_of(len(record.running), 'thread')} running ({threads})"
        else:
            reason = headline_of(record)
        reasons.setdefault(reason, []).append(record.module)
    for reason, modules in reasons.items():
        yield Line(f"not before forks: {named(modules)}: {reason}", "bad")


def _cut(lines: Sequence[Line], most: int) -> list[Line]:
    """Return the first lines, and how many there are beyond."""
    left = len(lines) - most
    return [*lines[:most], *([Line(f"... and {left} more (-v shows them)")] if left > 0 else [])]
