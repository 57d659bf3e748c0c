"""Pieces of work that crash, hang or raise take nothing of the others with them."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from tests.support.forked_batches import Limits, run_batches

SECONDS = 120  # on a busy machine, too, the pieces that end by themselves do so sooner


def work(piece: list[Any]) -> dict[str, Any]:
    kind = piece[0]
    if kind == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "hang":
        left = signal.getitimer(signal.ITIMER_REAL)[0]
        assert 0 < left <= SECONDS, "the limit of this piece, and of no earlier one"
        signal.setitimer(signal.ITIMER_REAL, 0.01)  # it is over
        time.sleep(3600)
    if kind == "raise":
        raise ValueError("no")
    return {"kind": kind, "pid": os.getpid()}


def run(*batches: list[list[Any]], budget: float = 2 * SECONDS) -> dict[int, dict[str, Any]]:
    limits = Limits(jobs=2, seconds=SECONDS, budget=budget)
    return run_batches(list(batches), work, lambda said: said["kind"] != "stop", limits)


def test_each_piece_is_answered_whatever_the_others_do() -> None:
    pieces = [["a"], ["die"], ["b"], ["raise"], ["stop"], ["c"], ["hang"], ["d"]]
    said = run(pieces)
    told = [said[id(one)] for one in pieces]
    assert [one.get("kind") for one in told] == ["a", None, "b", None, "stop", "c", None, "d"]
    assert told[1]["died"] == -signal.SIGKILL
    assert "ValueError: no" in told[3]["raised"]
    assert told[6]["died"] == -signal.SIGALRM
    assert told[4]["pid"] != told[5]["pid"], "a piece that ended the process got it, too"
    assert all(0 <= one["seconds"] < 2 * SECONDS for one in told)


def test_pieces_that_go_well_share_a_process() -> None:
    pieces = [["a"], ["b"], ["c"]]
    said = run(pieces)
    assert len({said[id(one)]["pid"] for one in pieces}) == 1


def test_what_was_not_run_in_time_is_left_out() -> None:
    pieces = [["hang"], ["hang"], ["a"]]
    said = run(*([one] for one in pieces), budget=0.0)
    assert not {id(one) for one in pieces} & set(said)
