"""The document of a session: what its tests did, and all that the check saw, as plain data."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

from pytest_cudafork.check.failing import failed_status
from pytest_cudafork.check.findings import Finding
from pytest_cudafork.check.hooks import host_words
from pytest_cudafork.documents.form import head, plain_stack, plain_touch
from pytest_cudafork.observe.base.records import Record
from pytest_cudafork.observe.observer import Observer
from pytest_cudafork.observe.story.plain_text import plain
from pytest_cudafork.observe.story.stories import History
from pytest_cudafork.observe.story.touch import frames_from
from pytest_cudafork.observe.story.words import place_of
from pytest_cudafork.report.header import limits_of
from pytest_cudafork.report.tests_seen import TestsSeen


def session_document(
    session: pytest.Session,
    seconds: float,
    tests: TestsSeen,
    check: dict[str, Any] | None,
    audit: dict[str, Any] | None,
    *,
    timeline: dict[str, Any],
    not_written: Iterable[str] = (),
    reasons: Iterable[str] = (),
    stopped: str = "",
    looked_at_captures: bool = False,
) -> dict[str, Any]:
    """Return a session as plain data.

    Args:
        session: It, when all its tests have run.
        seconds: How long it took.
        tests: What became of its tests.
        check: What ``check_content`` returned; None where nothing was checked.
        audit: What is said of the import audit; None where there was none.
        timeline: Which process did what when.
        not_written: The files that could not be written, in words.
        reasons: Why the session fails beside its tests, in words.
        stopped: Why the session did not come to its end, or "".
        looked_at_captures: Whether captures of all tests were looked at.

    """
    config = session.config
    missing = [plain(words) for words in not_written]
    status = int(session.exitstatus)
    if missing:  # as it will be: see ``Outputs``
        status = int(failed_status(status))
    unseen = [] if check is not None else ["nothing was watched: --cuda-fork-check is off"]
    return {
        **head("session"),
        "command": [plain(str(arg)) for arg in config.invocation_params.args],
        "root": str(config.rootpath),
        "exit_status": status,
        "good": status == pytest.ExitCode.OK,
        "stopped": plain(stopped),
        "not_written": missing,
        "failed_for": [plain(words) for words in reasons],
        "seconds": round(seconds, 3),
        "counts": tests.counts(),
        "tests": tests.tests,
        "collection_errors": tests.errors,
        "collection_skips": tests.skips,
        "captures": tests.captures,
        "captured_graphs": tests.graphs.content(looked=looked_at_captures),
        "replay_audit": tests.audited.content(),
        "check": check,
        "imports": audit,
        "timeline": timeline,
        "not_observable": [*unseen, *(check["not_observable"] if check is not None else ())],
    }


def check_content(
    observer: Observer,
    level: str,
    records: list[Record],
    findings: Iterable[Finding],
    accepted: Collection[str],
    lost: Collection[str],
) -> dict[str, Any]:
    """Return what the check saw, as plain data.

    Args:
        observer: What watched this process.
        level: The level of the check.
        records: The ledger.
        findings: The errors, those that are accepted included.
        accepted: The ids of those that the baseline holds.
        lost: What is known to be missing from the ledger, in words.

    """
    history = History(records)
    witnesses = observer.witnesses
    return {
        "level": level,
        "device": observer.settings.device,
        "simulated_driver": observer.simulated,
        "witness": witnesses.words if witnesses else "none",
        "findings": [
            {
                **found.plain(history, simulated=observer.simulated),
                "test": plain(found.nodeid),
                "phase": plain(str(found.record.get("phase", ""))),
                "accepted": found.id in accepted,
            }
            for found in findings
        ],
        "touches": [plain_touch(touch) for touch in history.touches],
        "forks": [_fork(record) for record in records if record["k"] == "fork"],
        "processes": {
            str(record["pid"]): plain(" ".join(record.get("argv", ())))
            for record in records
            if record["k"] == "process"
        },
        "lost": [plain(words) for words in lost],
        "not_observable": [
            plain(words) for words in (*limits_of(observer), *lost, *host_words(records, "limits"))
        ],
    }


def _fork(record: Record) -> dict[str, Any]:
    frames = frames_from(record.get("stack", ()))
    return {
        "process": int(record["pid"]),
        "call": plain(str(record.get("api", ""))),
        "verdict": str(record.get("verdict", "")),
        "place": place_of(frames),
        "test": plain(str(record.get("test", "")).rpartition(" (")[0]),
        "stack": plain_stack(frames),
    }
