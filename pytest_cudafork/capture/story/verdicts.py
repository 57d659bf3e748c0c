"""What checks of graphs have judged, kept until the report of the test carries it on.

The report takes it to the session's process, also from a test in a process of its own.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_cudafork.capture.interface.backend import CaptureFinding, GraphNode
from pytest_cudafork.capture.story.remarks import UntilReport

if TYPE_CHECKING:
    from pytest_cudafork.capture.story.findings import CheckLog

PASSED, FAILED, NOT_JUDGED = "passed", "failed", "not judged"


class CheckedCapture(NamedTuple):
    """A captured graph that was checked.

    Attributes:
        title: What was checked, as a failure calls it.
        backend: What captured it: "software" or "cuda".
        verdict: "passed", "failed", or "not judged": the backend cannot run the code.
        checks: The names of the checks that ran.
        not_checked: Those that did not, each with the reason.
        notes: What is worth knowing and not wrong.
        findings: What is wrong.
        nodes: The work that the graph holds, in order; None: it is not known.

    """

    title: str
    backend: str
    verdict: str
    checks: tuple[str, ...] = ()
    not_checked: Mapping[str, str] = {}
    notes: tuple[str, ...] = ()
    findings: tuple[CaptureFinding, ...] = ()
    nodes: tuple[GraphNode, ...] | None = None

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> CheckedCapture:
        """Read what ``to_plain`` returned.

        Raises:
            LookupError: it is not that.
            TypeError: likewise.

        """
        return cls(
            **{
                **data,
                "checks": tuple(data["checks"]),
                "not_checked": dict(data["not_checked"]),
                "notes": tuple(data["notes"]),
                "findings": tuple(CaptureFinding(**each) for each in data["findings"]),
                "nodes": _read_nodes(data["nodes"]),
            }
        )

    def to_plain(self) -> dict[str, Any]:
        """Return it as texts, lists and dicts."""
        return {
            **self._asdict(),
            "checks": list(self.checks),
            "not_checked": dict(self.not_checked),
            "notes": list(self.notes),
            "findings": [dataclasses.asdict(each) for each in self.findings],
            "nodes": None if self.nodes is None else _plain_nodes(self.nodes),
        }


def _plain_nodes(nodes: Iterable[GraphNode]) -> list[dict[str, Any]]:
    """Return nodes as plain data; those that are alike and follow each other are one entry."""
    return [
        {**node._asdict(), "times": sum(1 for _ in alike)}
        for node, alike in itertools.groupby(nodes)
    ]


def _read_nodes(data: Iterable[Mapping[str, Any]] | None) -> tuple[GraphNode, ...] | None:
    if data is None:
        return None
    return tuple(
        GraphNode(each["kind"], each["name"], each["where"])
        for each in data
        for _ in range(each["times"])
    )


_VERDICTS: UntilReport[CheckedCapture] = UntilReport("cudafork_verdicts")


def note_verdict(
    title: str, backend: str, log: CheckLog, nodes: tuple[GraphNode, ...] | None = None
) -> None:
    """Keep a verdict until the report of the test is made; the log says what was found."""
    verdict = PASSED if not log.findings else FAILED if log.judged else NOT_JUDGED
    checks, notes, findings = tuple(log.ran), tuple(log.notes), tuple(log.findings)
    _VERDICTS.add(
        CheckedCapture(title, backend, verdict, checks, dict(log.skipped), notes, findings, nodes)
    )


def take_verdicts() -> list[dict[str, Any]]:
    """Return the verdicts since the last call, as plain data."""
    return [each.to_plain() for each in _VERDICTS.take()]
