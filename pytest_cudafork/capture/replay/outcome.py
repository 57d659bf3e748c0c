"""The end of a check: an error with all that was found, or none."""

from __future__ import annotations

from pytest_cudafork.capture.interface.backend import GraphBackend, GraphNode
from pytest_cudafork.capture.story.findings import CheckLog, failure_text
from pytest_cudafork.capture.story.remarks import remark
from pytest_cudafork.capture.story.verdicts import note_verdict
from pytest_cudafork.errors import GraphCaptureError, GraphNotJudgedError


def raise_what_was_found(
    log: CheckLog,
    title: str,
    backend: GraphBackend,
    error: type[GraphCaptureError],
    nodes: tuple[GraphNode, ...] | None = None,
) -> None:
    """Raise the error of a check if it found anything; else keep its remarks for the report.

    Args:
        log: what was found.
        title: what the message begins with where there is a verdict.
        backend: what captured the graph.
        error: what to raise where there is a verdict.
        nodes: the work in the graph; None: it is not known, or there is no graph.

    Raises:
        GraphCaptureError: as ``error`` says; something is wrong with the code.
        GraphNotJudgedError: all that was found is that the backend cannot run the code.

    """
    __tracebackhide__ = True
    note_verdict(
        title,
        backend.name,
        checks=log.ran,
        not_checked=log.skipped,
        notes=log.notes,
        findings=log.findings,
        nodes=nodes,
    )
    if not log.findings:
        remark(log.notes, log.skipped)
        return
    judged = any(one.check != "not-judged" for one in log.findings)
    text = failure_text(
        title if judged else "no verdict, the code cannot be judged here",
        log.findings,
        backend=backend.name,
        not_checked=log.skipped,
        notes=log.notes,
        differs=backend.differences() if judged else "",
    )
    kind = error if judged else GraphNotJudgedError
    raise kind(text, tuple(log.findings)) from log.cause
