"""``python -m pytest_cudafork merge``: its arguments, what it prints, its exit status."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence

from pytest_cudafork.baseline.entries import CheckBaseline
from pytest_cudafork.baseline.file import BaselineError, alone
from pytest_cudafork.documents.writing import printable
from pytest_cudafork.observe.story.plain_text import plain
from pytest_cudafork.report.baseline import accepted_words, gone_lines, seen_lines, unknown_words
from pytest_cudafork.report.merge import Job, Merged, MergeError, merge, read_jobs, write_joined
from pytest_cudafork.report.terminal import Counts
from pytest_cudafork.settings.option_texts import UPDATES

CLEAN, ERRORS, USAGE = 0, 1, 2


def main(args: Sequence[str]) -> int:
    """Join ledgers and print what they hold together.

    Args:
        args: What follows ``python -m pytest_cudafork merge``.

    Returns:
        0: nothing but what is accepted was found. 1: something else was, or a job did not come to
        its end or lost records. 2: the arguments are wrong, or a file is not what it should be.

    """
    parser = _parser()
    given = parser.parse_args(args)
    if given.update and not given.baseline:
        parser.error("--update: there is no file to write: name it with --baseline=FILE")
    try:
        jobs = read_jobs(given.ledgers)
        baseline = _read_baseline(given.baseline, given.update)
        merged = merge(jobs, baseline.entries)
        if given.output:  # first: where it cannot be written, nothing is changed
            write_joined(given.output, jobs)
        written = _update(given.baseline, given.update, merged) if given.update else ""
    except (MergeError, BaselineError, OSError) as error:
        parser.exit(USAGE, f"{parser.prog}: error: {error}\n")
    for line in _lines(jobs, merged, written, given):
        sys.stdout.write(printable(f"{plain(line)}\n"))
    bad = merged.errors or merged.result.unknown
    new = merged.result.new and (given.update != "all" or not written)
    return ERRORS if bad or new else CLEAN


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pytest_cudafork merge",
        description="Join the ledgers of jobs that ran a suite in parts (each with "
        "--cuda-fork-ledger=FILE), say what the check found in all of them, and change its "
        "baseline. Exit status: 0 if all that was found is accepted, 1 if not or if a job did not "
        "come to its end, 2 on wrong usage.",
    )
    add = parser.add_argument
    add("ledgers", metavar="LEDGER", nargs="+", help="the ledger of one job")
    add("--output", metavar="FILE", default="", help="Write the joined ledger here.")
    add("--baseline", metavar="FILE", default="", help="The baseline of the check.")
    add("--update", metavar="HOW", nargs="?", const="all", default="", choices=UPDATES,
        help="Change the baseline: all (the flag alone) or shrink, as in pytest.")  # fmt: skip
    return parser


def _read_baseline(path: str, update: str) -> CheckBaseline:
    if not path or (update == "all" and not os.path.lexists(path)):
        return CheckBaseline()
    return CheckBaseline.read(path, "--update")


def _update(path: str, how: str, merged: Merged) -> str:
    """Change the file; return what was written, in words, or "" where jobs are incomplete.

    Raises:
        BaselineError: It cannot be read or written.

    """
    if merged.errors:
        return ""
    with alone(path):
        before = _read_baseline(path, how)
        after = before.updated(merged.result.seen, merged.gone, add=how == "all")
        after.write(path)
    return f"baseline {path} written: {after.changes_since(before)}"


def _lines(
    jobs: Sequence[Job], merged: Merged, written: str, given: argparse.Namespace
) -> Iterator[str]:
    for job in jobs:
        status = f"exit status {job.status}" if job.status >= 0 else "no end"
        yield f"{job.path}: {status}; {Counts.of(job.records).line()}"
    result = merged.result
    for seen, line in zip(result.new, seen_lines(result.new), strict=True):
        yield f"{'new' if written and given.update == 'all' else 'ERROR: not accepted'}: {line}"
        if len(jobs) > 1:
            yield f"    in {', '.join(merged.jobs_of[seen.what])}"
    if result.unknown:
        yield f"ERROR: {unknown_words(result)}"
    if given.baseline or result.accepted:  # else there may be none, and nothing to be said of it
        yield f"baseline: {accepted_words(result)}"
    yield from (f"  {line}" for line in seen_lines(result.accepted))
    if not written:
        yield from gone_lines(merged.gone, result)
    yield from (f"ERROR: {words}" for words in merged.errors)
    if written:
        yield written
    elif given.update:
        yield "ERROR: the baseline was not changed, as not all jobs are known to the end"
