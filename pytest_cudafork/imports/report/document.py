"""An audit for other programs: its document, and its problems for tools that show them."""

from __future__ import annotations

from typing import Any

from pytest_cudafork.documents.form import head, plain_touch
from pytest_cudafork.documents.problem import (
    ERROR,
    NOTE,
    WARNING,
    Place,
    Problem,
    is_in,
    place_of_touch,
    steps_of_touch,
)
from pytest_cudafork.imports.audit.confirm import CheckedRecord
from pytest_cudafork.imports.graph.picture import picture_data
from pytest_cudafork.imports.report.findings import Findings
from pytest_cudafork.imports.report.story import headline_of, story_lines
from pytest_cudafork.imports.values.records import ImportRecord, ImportVerdict, Outcome
from pytest_cudafork.observe.story.plain_text import plain

_BAD = (Outcome.FAILED, Outcome.ERROR)


def audit_document(findings: Findings) -> dict[str, Any]:
    """Return an audit as plain data."""
    return {**head("audit"), **audit_content(findings)}


def audit_content(findings: Findings) -> dict[str, Any]:
    """Return what is said of an audit, without the head; a session with one says it, too."""
    outcomes = {findings.outcome(record) for record in findings.records}
    return {
        "good": findings.complete and not outcomes.intersection(_BAD),
        "complete": findings.complete,
        "packages": {name: len(modules) for name, modules in findings.found.items()},
        "since": None if findings.change is None else findings.change.to_plain(),
        "culprits": [
            {"culprit": each.where, "scope": each.scope, "modules": list(each.modules)}
            for each in findings.culprits
        ],
        "modules": [_module(findings, each) for each in findings.checked],
        "graph": _graph(findings),
    }


def _graph(findings: Findings) -> dict[str, Any] | None:
    """Return who imports whom; None of a change, whose audit does not read all sources."""
    if findings.change is not None:
        return None
    return picture_data(findings.graph, findings.main, findings.culprits, findings.base)


def _module(findings: Findings, checked: CheckedRecord) -> dict[str, Any]:
    record = checked.record
    culprit = record.culprit
    return {
        "module": record.module,
        "package": record.package,
        "without": record.without,
        "verdict": record.verdict.value,
        "outcome": findings.outcome(record).value,
        "where": record.where,
        "scope": culprit.scope.value if culprit else "",
        "reason": plain(record.reason),
        "output": record.output,
        "seconds": round(record.seconds, 4),
        "confirmed": record.confirmed,
        "artifact": checked.artifact,
        "touches": [plain_touch(touch) for touch in record.touches],
        "loaded": list(record.loaded),
        "running": [thread._asdict() for thread in record.running],
        "traces": None if record.traces is None else record.traces.to_plain(),
    }


def audit_problems(findings: Findings, root: str) -> list[Problem]:
    """Return the modules that are not as they should be, those that are accepted included.

    Args:
        findings: What was found.
        root: The project's folder.

    """
    files = {each.name: each.path for modules in findings.found.values() for each in modules}
    problems = [
        _problem(record, findings, root, files.get(record.module, ""))
        for record in findings.records
        if findings.outcome(record) in (*_BAD, Outcome.ACCEPTED)
    ]
    # One line may touch in a thousand modules: it is one problem, told with the first of them.
    unique: dict[tuple[str, ...], Problem] = {}
    for record, problem in problems:
        key = (record.where,) if record.where else (problem.rule, record.module, record.without)
        unique.setdefault(key, problem)
    return list(unique.values())


def _problem(
    record: ImportRecord, findings: Findings, root: str, file: str
) -> tuple[ImportRecord, Problem]:
    accepted = ""
    if findings.outcome(record) is Outcome.ACCEPTED:
        accepted = "in the baseline of the import audit"
    touch = record.touches[0] if record.touches else None
    own = Place(file, 1) if file and is_in(root, file) else None
    return record, Problem(
        rule=_rule_of(record),
        level=NOTE if accepted else _level_of(record),
        message=f"{record.module}: {plain(headline_of(record))}",
        story="\n".join(story_lines(record)),
        place=(place_of_touch(root, touch) if touch else None) or own,
        steps=steps_of_touch(touch) if touch else (),
        accepted=accepted,
        test=f"{record.package}::{record.module}",
    )


def _rule_of(record: ImportRecord) -> str:
    if record.verdict.touched:
        return "touch-at-import"
    if record.verdict is ImportVerdict.NOT_OBSERVABLE:
        return "not-observable"
    return "import-broken"


def _level_of(record: ImportRecord) -> str:
    return WARNING if record.verdict is ImportVerdict.NOT_OBSERVABLE else ERROR
