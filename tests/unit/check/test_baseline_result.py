"""What a session has to say of its baseline: accepted, new, and gone only where that is sure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_cudafork.baseline.culprit import Culprit
from pytest_cudafork.baseline.entries import Accepted
from pytest_cudafork.check.accepted import Terms
from pytest_cudafork.check.baseline_result import BaselineResult, Seen, result_of
from pytest_cudafork.check.findings import Finding
from pytest_cudafork.errors import CudaForkError
from pytest_cudafork.settings import Level

TEST = "test_it.py::test_a"
LINE = Culprit("lib.py", "f", "")
TOUCH, FORK = Accepted("touch", LINE), Accepted("fork", LINE)


def record(kind: str, number: int, pid: int = 1, name: str = "f", **fields: Any) -> dict[str, Any]:
    """Return a record of a test, with a stack in a file below /repo that is not there."""
    stack = [["/repo/lib.py", number, name, 3]] if name else []
    return {"k": kind, "id": f"{kind}{number}", "t": number, "pid": pid, "owner": "1",
            "test": f"{TEST} (call)", "stack": stack, **fields}  # fmt: skip


def judged(
    records: list[dict[str, Any]], *entries: Accepted, level: Level = Level.TOUCH, place: str = TEST
) -> BaselineResult:
    """Return the result of a session with these entries."""
    return result_of(records, level, "/repo", Terms("/repo", dict.fromkeys(entries, place)), ())


RAN = record("ran", 9, place=TEST)


def test_what_was_accepted_and_what_was_new_is_counted_by_culprit() -> None:
    records = [
        record("touch", 1),
        record("touch", 2, test="", phase="collect a.py"),
        record("accepted", 3, ids=["touch1", "touch2", "not there"], what=TOUCH.to_list()),
        record("fork", 4, verdict="accepted"),
        record("touch", 5, name="g"),
        record("fork", 6, pid=7, verdict="guarded"),
        record("fork", 8, verdict="guarded"),
        record("caught", 9, fork="fork8", by_name=True),
        record("reported", 9, ids=["touch5"]),
    ]
    late = Finding(records[5], CudaForkError)
    result = result_of(records, Level.TOUCH, "/repo", Terms("/repo", {TOUCH: TEST}), [late])
    assert result.accepted == (Seen(TOUCH, [TEST, "collect a.py"], 2), Seen(FORK, [TEST], 1))
    assert result.new == (Seen(Accepted("touch", Culprit("lib.py", "g", "")), [TEST], 1),)
    assert result.unknown == 1  # nobody saw what initialized process 7
    assert result.seen[TOUCH] == [TEST, "collect a.py"]
    assert BaselineResult.from_plain(result.to_plain()) == result


@pytest.mark.parametrize(
    ("records", "quiet"),
    [
        ([RAN], True),
        ([], False),  # its place was not passed
        ([{**RAN, "place": "test_it.py::test_b"}], False),
        ([record("touch", 1, name="g"), RAN], False),  # another line was first
        ([record("touch", 1, pid=2, name="g"), RAN], True),  # in another process
    ],
)
def test_an_entry_is_quiet_where_it_would_have_shown(
    records: list[dict[str, Any]], quiet: bool
) -> None:
    for entry in (TOUCH, FORK):
        assert judged(records, entry).quiet == ((entry,) if quiet else ())


def test_forks_are_gone_though_the_touch_that_they_were_refused_for_is_there() -> None:
    assert judged([record("touch", 1), RAN], FORK).quiet == (FORK,)
    assert judged([record("touch", 1), RAN], TOUCH).quiet == ()
    seen = [record("touch", 1), record("fork", 2, verdict="accepted"), RAN]
    assert judged(seen, FORK).quiet == ()


def test_an_entry_whose_line_initialized_cuda_elsewhere_is_neither_there_nor_gone() -> None:
    """The test that touches and the one that forks may have gone to two workers."""
    poisoned = Accepted("poisoned", LINE)
    result = judged([record("touch", 1, pid=2), RAN], FORK, poisoned)
    assert (result.quiet, result.initialized) == ((), (FORK, poisoned))
    assert BaselineResult.from_plain(result.to_plain()) == result
    # A child of a process that this line initialized inherits that.
    child = record("child", 2, pid=1, parent=2, fork="fork2", state="initialized")
    fork = record("fork", 2, pid=2, verdict="guarded")
    result = judged([record("touch", 1, pid=2), fork, child, RAN], FORK)
    assert (result.quiet, result.initialized) == ((FORK,), (FORK,))
    # What a poisoned child tried has initialized nothing.
    assert judged([record("touch", 1, pid=2, poisoned=True), RAN], FORK).quiet == (FORK,)


def test_the_ledger_of_an_older_version_says_nothing_of_lines_that_initialized_cuda() -> None:
    data = BaselineResult(quiet=(FORK,)).to_plain()
    del data["initialized"]
    assert BaselineResult.from_plain(data) == BaselineResult(quiet=(FORK,))


def test_a_level_judges_what_it_looks_at() -> None:
    assert judged([RAN], TOUCH, FORK, level=Level.FORK).quiet == (FORK,)
    assert judged([RAN], TOUCH, FORK, level=Level.POISON).quiet == ()


def test_what_is_not_in_its_file_any_more_is_missing_whatever_ran(tmp_path: Path) -> None:
    (tmp_path / "lib.py").write_text("probe()\n")
    there, gone = (Accepted("touch", Culprit("lib.py", "<module>", x)) for x in ("probe()", "x()"))
    terms = Terms(str(tmp_path), {there: TEST, gone: TEST})
    assert result_of([], Level.FORK, str(tmp_path), terms, ()).missing == (gone,)
    assert result_of([], Level.FORK, str(tmp_path), None, ()) == BaselineResult()


@pytest.mark.parametrize("data", [None, {}, {"accepted": 3}, [], {
    "accepted": [[["no kind", "", "", ""], [], 1]], "new": [], "unknown": 0, "missing": [],
    "quiet": [],
}, {
    "accepted": [], "new": [], "unknown": float("inf"), "missing": [], "quiet": [],
}])  # fmt: skip
def test_what_is_no_result_is_refused(data: object) -> None:
    with pytest.raises(ValueError, match=r"no result of a session|no entry of a baseline"):
        BaselineResult.from_plain(data)
