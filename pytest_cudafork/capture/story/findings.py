"""What checks find, and the words of a failure: each finding with its place and what to do."""

from __future__ import annotations

import linecache
import textwrap

from pytest_cudafork.capture.interface.backend import CaptureFinding
from pytest_cudafork.capture.interface.check_names import CheckName
from pytest_cudafork.capture.interface.lines import shown
from pytest_cudafork.counted import count_of

_WIDTH = 96


class CheckLog:
    """What was checked so far, what could not be, and what was found."""

    def __init__(self) -> None:
        self.findings: list[CaptureFinding] = []
        self.ran: dict[str, None] = {}
        self.skipped: dict[str, str] = {}
        self.notes: list[str] = []
        self.cause: BaseException | None = None

    def add(
        self,
        check: CheckName,
        what: str,
        *,
        path: str = "",
        where: str = "",
        why: str = "",
        todo: str = "",
    ) -> None:
        """Note a finding; an equal one of the same check at the same path is noted once."""
        self.add_finding(CaptureFinding(check, what, path, where, why, todo))

    def add_finding(self, finding: CaptureFinding) -> None:
        """Note a finding that a backend has made, likewise."""
        known = {(found.check, found.path) for found in self.findings if found.path}
        if not finding.path or (finding.check, finding.path) not in known:
            self.findings.append(finding)

    @property
    def judged(self) -> bool:
        """Whether something was found beside what the backend cannot run."""
        return any(one.check != "not-judged" for one in self.findings)

    def did(self, *names: CheckName) -> None:
        """Note that checks ran."""
        self.ran.update(dict.fromkeys(names))

    def cannot(self, name: str, why: str) -> None:
        """Note that a check cannot run here."""
        self.skipped.setdefault(name, why)

    def note(self, text: str) -> None:
        """Note what is worth knowing and not wrong."""
        if text not in self.notes:
            self.notes.append(text)


def failure_text(title: str, log: CheckLog, backend: str, differs: str = "") -> str:
    """Return the whole message of a failed check.

    Args:
        title: What it begins with.
        log: What was found.
        backend: What captured the graph.
        differs: In what its answer can differ from what a CUDA graph does; "": in nothing.

    """
    count = len(log.findings)
    lines = [f"{title}: {count_of(count, 'finding')} ({backend} graph)"]
    told: set[tuple[str, str]] = set()
    for finding in log.findings:
        lines += ["", *finding_lines(finding, brief=(finding.why, finding.todo) in told)]
        told.add((finding.why, finding.todo))
    extra = [f"note: {note}" for note in log.notes]
    extra += [f"not checked: {name}: {why}" for name, why in log.skipped.items()]
    if differs:
        extra.append(
            f"this is the verdict of the {backend} graph; graph_backend.differences() says where a "
            "CUDA graph can differ"
        )
    if extra:
        lines.append("")
    for text in extra:
        lines += wrapped(text, "", "  ")
    return "\n".join(lines)


def finding_lines(finding: CaptureFinding, *, brief: bool = False) -> list[str]:
    """Return one finding in words; ``brief`` leaves out why it matters and what to do."""
    head = f"[{finding.check}]"
    if finding.path and not finding.what.startswith(finding.path):
        head += f" {finding.path}:"
    lines = wrapped(f"{head} {finding.what}", "", "    ")
    if finding.where:
        lines += place_lines(shown(finding.where), finding.where)
    if not brief:
        lines += reason_lines(finding.why, finding.todo)
    elif finding.why or finding.todo:
        lines.append("    why it matters and what to do: as above")
    return lines


def place_lines(words: str, where: str) -> list[str]:
    """Return these words, and the source of a line if it can be read."""
    source = source_of(where)
    return [f"    {words}", *([f"        > {source}"] if source else [])]


def reason_lines(why: str, todo: str) -> list[str]:
    """Return why a finding matters and what to do, either of which may be ""."""
    lines = wrapped(why, "    ", "    ")
    return lines + (wrapped(f"what to do: {todo}", "    ", "      ") if todo else [])


def wrapped(text: str, first: str, rest: str) -> list[str]:
    """Break a text into lines of a failure."""
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def source_of(where: str) -> str:
    """Return the text of a line; "" if it cannot be read."""
    name, _, line = where.partition(" ")[0].rpartition(":")
    return linecache.getline(name, int(line)).strip() if line.isdigit() else ""
