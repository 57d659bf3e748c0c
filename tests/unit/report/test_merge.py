"""Ledgers of several jobs, joined: nothing of two jobs is taken for one, and nothing is lost."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_cudafork.baseline.culprit import Culprit
from pytest_cudafork.baseline.entries import Accepted
from pytest_cudafork.check.baseline_result import BaselineResult, Seen
from pytest_cudafork.observe.base.ledger import Ledger, LedgerError
from pytest_cudafork.observe.story.stories import History
from pytest_cudafork.report.merge import MergeError, merge, read_jobs, write_joined

A, B, C = (Accepted("fork", Culprit("lib.py", "f", text)) for text in "abc")


def ledger(path: Path, result: BaselineResult | None, stopped: str = "", **touch: Any) -> str:
    """Write the ledger of a job with one touch; without a result it did not come to its end."""
    made = Ledger(str(path))
    made.create()
    fields = {"pid": 7, "owner": "7", "stack": [[f"/{path.name}.py", 1, "f", 3]]}
    made.append("touch", **{**fields, **touch})
    made.append("child", pid=8, parent=7, owner="7")
    made.append("reported", ids=["x-1"], pid=7, owner="7")
    if result is not None:
        made.append("end", result=result.to_plain(), stopped=stopped, status=1)
    return str(path)


def test_what_two_jobs_saw_is_counted_together_and_gone_if_neither_saw_it(tmp_path: Path) -> None:
    one = BaselineResult((Seen(A, ["start"], 2),), (), 1, (), quiet=(B, C))
    two = BaselineResult((Seen(A, ["start", "b.py::t"], 3),), (Seen(B, ["b.py::t"], 1),), 0, (C,))
    paths = [ledger(tmp_path / "one", one), ledger(tmp_path / "two", two)]
    merged = merge(read_jobs(paths))
    assert merged.result.accepted == (Seen(A, ["start", "b.py::t"], 5),)
    assert merged.result.new == (Seen(B, ["b.py::t"], 1),)
    assert merged.gone == (C,)
    assert merged.result.unknown == 1
    assert merged.jobs_of == {A: paths, B: paths[1:]}
    assert merged.errors == ()
    assert merge(read_jobs(paths), [B]).result.new == ()


def test_what_initialized_cuda_in_another_job_is_gone_only_where_its_test_passed_after_it(
    tmp_path: Path,
) -> None:
    """The line of B initialized CUDA in a job without B's test; that of C in the one with it."""
    one = ledger(tmp_path / "one", BaselineResult(quiet=(A, B, C), initialized=(C,)))
    two = ledger(tmp_path / "two", BaselineResult(initialized=(B, C)))
    merged = merge(read_jobs([one, two]))
    assert merged.gone == (A, C)
    assert (merged.result.quiet, merged.result.initialized) == ((A, C), (C, B))


def test_where_a_job_is_incomplete_nothing_is_said_to_be_gone(tmp_path: Path) -> None:
    result = BaselineResult(quiet=(A,))
    fine = ledger(tmp_path / "fine", result)
    assert merge(read_jobs([fine])).gone == (A,)
    killed = ledger(tmp_path / "killed", None)
    stopped = ledger(tmp_path / "stopped", result, stopped="after 1 failure")
    torn = ledger(tmp_path / "torn", result)
    with open(torn, "ab") as file:
        file.write(b'\n{"k": "touch", "id"')
    broken = ledger(tmp_path / "broken", None)
    Ledger(broken).append("end", result={}, stopped="", status=0)
    endless = ledger(tmp_path / "endless", None)
    Ledger(endless).append("end", result=result.to_plain(), stopped="", status="of no use")
    Path(endless).write_text(Path(endless).read_text().replace('"of no use"', "1e999"))
    merged = merge(read_jobs([fine, killed, stopped, torn, broken, endless]))
    assert merged.gone == ()
    assert [error.removeprefix(f"{tmp_path}/") for error in merged.errors] == [
        "killed: its session did not come to its end",
        "stopped: its session was stopped: after 1 failure",
        "torn: 1 line of the ledger is cut short, or no record",
        "broken: its last record is broken",
        "endless: its last record is broken",
    ]


def test_the_joined_ledger_is_one_and_keeps_processes_apart(tmp_path: Path) -> None:
    paths = [ledger(tmp_path / name, BaselineResult()) for name in ("one", "two")]
    jobs = read_jobs(paths)
    out = str(tmp_path / "joined")
    write_joined(out, jobs)
    reader = Ledger(out).reader()
    records = reader.new()
    reader.close()
    assert [record["path"] for record in records if record["k"] == "job"] == paths
    joined = [record for record in records if record["k"] != "job"]
    assert len(joined) == sum(len(job.records) for job in jobs)
    assert len({record["id"] for record in records}) == len(records)
    history = History(records)
    pids = sorted({int(r["pid"]) for r in joined if r["k"] == "child"})
    wheres = [touch.where for pid in pids if (touch := history.initializer(pid)) is not None]
    assert wheres == ["/one.py:1", "/two.py:1"]
    assert {record["job"] for record in joined} == set(paths)
    owners = {record["owner"] for record in joined if record["k"] == "touch"}
    assert owners == {"7", str(7 + (1 << 32))}
    assert [r["ids"] for r in joined if r["k"] == "reported"] == [["x-1"], ["1:x-1"]]


SEEN = st.builds(
    Seen, st.sampled_from((A, B, C)), st.lists(st.sampled_from("xyz"), min_size=1), st.just(2)
)
RESULTS = st.builds(
    BaselineResult,
    st.lists(SEEN, max_size=2).map(tuple),
    st.lists(SEEN, max_size=2).map(tuple),
    st.integers(0, 1),
    st.lists(st.sampled_from((A, B, C)), max_size=1).map(tuple),
    st.lists(st.sampled_from((A, B, C)), max_size=1).map(tuple),
)
JOBS = st.tuples(
    st.none() | RESULTS, st.sampled_from(["", "", "after 1 failure"]), st.integers(0, 6)
)


@settings(max_examples=15)
@given(st.lists(JOBS, min_size=2, max_size=4), st.integers(1, 3))
@example([(BaselineResult(new=(Seen(A, ["x"], 1),)), "", 0), (BaselineResult(), "", 0)], 1)
@example([(None, "", 5), (None, "", 6), (BaselineResult(quiet=(A,)), "", 0)], 2)
def test_what_was_joined_comes_to_the_same_when_it_is_joined_again(
    made: list[tuple[BaselineResult | None, str, int]], cut: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for number, (result, stopped, damage) in enumerate(made):
            paths.append(ledger(Path(folder, f"{number}.jsonl"), result, stopped))
            if damage == 3:
                Ledger(paths[-1]).append("end", result={}, stopped="", status=0)
            elif damage == 5:  # of a job that was killed at once
                Ledger(paths[-1]).create()
            elif damage == 6:
                Ledger(paths[-1]).mark_loss()
            elif damage == 4:
                with open(paths[-1], "ab") as file:
                    file.write(b'\n{"k": "touch", "id"')
        jobs = read_jobs(paths)
        cut = min(cut, len(jobs) - 1)
        first, second, all_of_it, again = (
            str(Path(folder, name)) for name in ("first", "second", "all", "again")
        )
        write_joined(first, jobs[:cut])
        write_joined(second, jobs[cut:])
        write_joined(all_of_it, read_jobs([first, second]))
        write_joined(again, read_jobs([all_of_it]))
        for joined in ([first, *paths[cut:]], [*paths[:cut], second], [all_of_it], [again]):
            assert read_jobs(joined) == jobs
            assert merge(read_jobs(joined), [A]) == merge(jobs, [A])
        # Not the bytes: the numbers of the records that joining writes may have more digits.
        lines = [Path(path).read_bytes().count(b"\n") for path in (again, all_of_it)]
        assert lines[0] == lines[1]


def test_a_joined_ledger_that_lacks_a_job_or_lines_is_told(tmp_path: Path) -> None:
    paths = [ledger(tmp_path / name, BaselineResult(quiet=(A,))) for name in ("one", "two")]
    out = tmp_path / "joined"
    write_joined(str(out), read_jobs(paths))
    lines = out.read_text().split("\n")
    second = next(n for n, line in enumerate(lines) if '"number": 1' in line)
    first = next(n for n, line in enumerate(lines) if '"number": 0' in line)
    for left, words in (
        (lines[:second], f"{paths[0]}: it is said to hold 2 jobs, and 1 are there whole"),
        (lines[:first] + lines[first + 1 :], "it is said to hold 2 jobs, and 1 are there whole"),
        ([*lines, '{"k": '], f"{paths[0]}: 1 line of the ledger is cut short, or no record"),
    ):
        out.write_text("\n".join(left))
        merged = merge(read_jobs([str(out)]))
        assert merged.gone == ()
        assert words in "\n".join(merged.errors)


def test_a_job_that_is_named_within_a_joined_ledger_too_is_told(tmp_path: Path) -> None:
    paths = [ledger(tmp_path / name, BaselineResult()) for name in ("one", "two")]
    out = str(tmp_path / "joined")
    write_joined(out, read_jobs(paths))
    with pytest.raises(MergeError, match=r"joined: holds the job of .*two, which is named already"):
        read_jobs([paths[1], out])


def test_what_one_job_lost_the_joined_ledger_lacks(tmp_path: Path) -> None:
    path = ledger(tmp_path / "one", BaselineResult())
    Ledger(path).mark_loss()
    out = tmp_path / "joined"
    write_joined(str(out), read_jobs([path]))
    assert "could not write a record" in " ".join(read_jobs([str(out)])[0].damage)


def test_files_that_are_no_ledgers_are_told(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("hello\n")
    path = ledger(tmp_path / "one", None)
    link = tmp_path / "again"
    link.symlink_to("one")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    behind = tmp_path / "behind"
    second = Path(ledger(tmp_path / "two", BaselineResult()))
    behind.write_bytes(Path(path).read_bytes() + second.read_bytes())
    joined = tmp_path / "joined"
    write_joined(str(joined), read_jobs([path]))
    joined.write_bytes(joined.read_bytes() + second.read_bytes())
    for paths, words in (
        ([str(other)], "is no ledger: have each job keep its own with --cuda-fork-ledger=FILE"),
        ([str(tmp_path / "none")], "cannot be read: No such file"),
        ([str(tmp_path)], "cannot be read: Is a directory"),
        ([path, str(link)], "are the same file"),
        ([str(pipe)], "is a pipe or a device"),
        (["/dev/zero"], "is a pipe or a device"),
        ([str(behind)], "behind: holds 2 ledgers, one behind the other: name each file by itself"),
        ([str(joined)], "joined: holds 2 ledgers, one behind the other"),
    ):
        with pytest.raises(MergeError, match=words):
            read_jobs(paths)
    with pytest.raises(LedgerError, match="left alone"):
        write_joined(str(other), read_jobs([path]))
    assert other.read_text() == "hello\n"
