"""What the page says first: whether the session was good, why not, and what nobody has seen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

GOOD, UNSURE, BAD = "good", "unsure", "bad"
_ENDS = {
    1: "tests or checks failed",
    2: "it was interrupted",
    3: "pytest or a plugin of it failed",
    4: "pytest was used wrongly",
    5: "no test ran",
}
"""What an exit status of pytest means."""
_NOT_SEEN = "not observable"


class Verdict(NamedTuple):
    """What is to be thought of a session.

    Attributes:
        state: ``GOOD``; ``UNSURE`` where nothing is wrong but something was not seen; ``BAD``.
        words: The same as a sentence.
        wrong: What is wrong, in words.
        unseen: What was not seen, judged or written, in words.

    """

    state: str
    words: str
    wrong: tuple[str, ...]
    unseen: tuple[str, ...]


def verdict_of(document: dict[str, Any]) -> Verdict:
    """Return the verdict on the document of a session."""
    wrong, unseen = tuple(_wrong(document)), tuple(dict.fromkeys(_unseen(document)))
    if not document["good"] or wrong:
        status = document["exit_status"]
        why = _ENDS.get(status)
        return Verdict(
            BAD, f"Not good: exit status {status}{f', {why}' if why else ''}", wrong, unseen
        )
    if unseen:
        return Verdict(UNSURE, "Nothing is known to be wrong, but not all was seen", wrong, unseen)
    return Verdict(GOOD, "Good", wrong, unseen)


def _wrong(document: dict[str, Any]) -> Iterator[str]:
    if document["stopped"]:
        yield f"the session did not come to its end: {document['stopped']}"
    yield from document["failed_for"]
    yield from document["not_written"]
    for outcome in ("failed", "error", "unfinished"):  # where xpassed is a failure, it is "failed"
        count = document["counts"].get(outcome, 0)
        if count:
            yield f"{_some(count, 'test')}: {outcome}"
    if errors := document["collection_errors"]:
        yield f"{_some(len(errors), 'file or folder', 'files or folders')} could not be collected"
    check = document["check"]
    if new := [] if check is None else [each for each in check["findings"] if not each["accepted"]]:
        yield f"{_some(len(new), 'error')} of the check that no baseline accepts"
    audit = document["imports"]
    if audit is not None and not audit["good"]:
        yield "the import audit is not good"
    graphs = document["captured_graphs"]
    if graphs is not None and (failing := [each for each in graphs["errors"] if each["fails"]]):
        yield f"{_some(len(failing), 'error')} in captured graphs"


def _unseen(document: dict[str, Any]) -> Iterator[str]:
    if document["good"] and not document["counts"]:
        yield "no test ran"  # --collect-only is a success, too
    yield from document["not_observable"]
    yield from () if document["check"] is None else document["check"]["lost"]
    yield from _unseen_imports(document["imports"])
    not_judged = [each for each in document["captures"] if each["verdict"] == "not judged"]
    if not_judged:
        yield f"{_some(len(not_judged), 'checked capture')} could not be judged"
    graphs = document["captured_graphs"]
    if graphs is not None:
        for why, count in graphs["not_judged"].items():
            yield f"captured graphs: {_some(count, 'value')} not judged: {why}"
        if graphs["elsewhere"]:
            yield f"{_some(graphs['elsewhere'], 'capture')} of other threads: nobody looked at them"
        if graphs["replays_elsewhere"]:
            replays = _some(graphs["replays_elsewhere"], "replay")
            yield f"{replays} in other threads, or of graphs captured there: nobody looked at them"
    replays = document["replay_audit"]
    if replays is not None and replays["not_judged"]:
        yield f"replay audit: {_some(len(replays['not_judged']), 'test')} not judged"
    for each in document["hook_errors"]:
        yield f"hook {each['hook']} of {each['where']}: {each['words']}"


def _unseen_imports(audit: dict[str, Any] | None) -> Iterator[str]:
    if audit is None:
        return
    unseen = [each for each in audit["modules"] if each["verdict"] == _NOT_SEEN]
    if unseen:
        yield f"import audit: {_some(len(unseen), 'module')} not observable"
    if not audit["complete"]:
        yield "import audit: not all modules were imported"
    if audit["since"] is not None:
        yield (
            f"import audit: only what the change since {audit['since']['ref']} can reach was "
            "imported, and the graph was not read"
        )


def _some(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"
