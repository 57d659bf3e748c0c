"""What forked children of a test find is told by the process that runs the test."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.in_tests.children import Children, _add  # noqa: E402
from pytest_cudafork.capture.interface.seen import Watch  # noqa: E402
from pytest_cudafork.capture.judge.findings import Findings, GraphFinding, Level  # noqa: E402
from tests.support.captures import Captured, Looking, looking  # noqa: E402
from tests.support.forked_work import do_in_child  # noqa: E402


def children_of(look: Looking) -> Children:
    """Have the children of this process tell."""
    look.watching.ask_children()
    children = look.watching.children
    assert children is not None
    assert not look.watching.a_child_waits()
    return children


def stale(look: Looking) -> tuple[Any, Captured]:
    """Return lengths, and a graph that reads what was computed of them before its capture."""
    lengths, x = torch.tensor([1, 2]), torch.ones(2)
    plan = lengths.cumsum(0)
    captured = look.capture(lambda: x * plan)
    captured.graph.held = x, plan
    return lengths, captured


def test_what_a_child_finds_is_told_once_and_no_more_than_that() -> None:
    with looking() as look:
        children = children_of(look)
        lengths, captured = stale(look)
        lengths.add_(1)
        captured.replay()

        def another() -> None:
            numbers, graph = stale(look)
            numbers.add_(1)
            do_in_child(graph.replay)  # a child of the child

        do_in_child(another)
        assert look.watching.a_child_waits()
        told = look.watching.take()
        assert (told["captures"], told["replays"], told["backends"]) == (2, 2, ["software"])
        assert [each["kind"] for each in told["errors"]] == ["stale-data"] * 2
        assert look.watching.take() == {}
        look.watching.close()
        assert not children.waits()


def test_a_replay_that_a_child_expects_to_raise_is_marked() -> None:
    with looking() as look:
        children_of(look)
        held = [torch.ones(3)]
        captured = look.capture(lambda: held[0] + 1)

        def refused() -> None:
            held.clear()
            gc.collect()
            with pytest.raises(RuntimeError, match="freed"):
                captured.replay()

        do_in_child(refused)
        (error,) = look.watching.take()["errors"]
        assert error["raised"]
        look.watching.close()


def test_a_child_that_has_closed_its_descriptors_tells_as_well() -> None:
    with looking() as look:
        children = children_of(look)
        lengths, captured = stale(look)

        def work() -> None:
            os.closerange(children._lines._fd, children._lines._fd + 1)
            lengths.add_(1)
            captured.replay()

        do_in_child(work)
        assert look.kinds() == ["stale-data"]
        look.watching.close()


def test_a_child_whose_test_has_replaced_functions_tells_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As pyfakefs does, for which there is no /proc."""

    def not_there(*arguments: Any, **more: Any) -> Any:
        raise FileNotFoundError(*arguments)

    with looking() as look:
        children_of(look)
        lengths, captured = stale(look)

        def work() -> None:
            for name in ["builtins.open", "io.open", "os.fstat", "json.dumps"]:
                monkeypatch.setattr(name, not_there)
            lengths.add_(1)
            captured.replay()

        do_in_child(work)
        assert look.kinds() == ["stale-data"]
        look.watching.close()


def test_a_test_that_closes_the_descriptors_of_its_process_harms_nobody(tmp_path: Path) -> None:
    with looking() as look:
        children = children_of(look)
        lengths, captured = stale(look)
        look.watching.take()
        os.close(children._lines._fd)
        assert not look.watching.a_child_waits()
        theirs = os.open(tmp_path / "theirs", os.O_RDWR | os.O_CREAT)
        os.dup2(theirs, children._lines._fd)
        do_in_child(lambda: (lengths.add_(1), captured.replay()))
        assert not look.watching.a_child_waits()
        assert (tmp_path / "theirs").read_bytes() == b""
        lost = children._lines._fd
        look.watching.ask_children()
        do_in_child(lambda: (lengths.add_(1), captured.replay()))
        assert look.kinds() == ["stale-data"]
        look.watching.close()
        for each in {lost, theirs}:
            os.close(each)


def test_a_child_that_outlives_its_test_is_named() -> None:
    with looking() as look:
        children_of(look)
        lengths, captured = stale(look)
        do_in_child(lambda: (lengths.add_(1), captured.replay()))
        look.watching.watch.test = "the_next_test"
        (error,) = look.watching.take()["errors"]
        assert error["what"].endswith("(in a process that test_of_it has started)")
        look.watching.close()


def test_a_process_of_an_isolated_test_has_reports_of_its_own() -> None:
    with looking() as look:
        children = children_of(look)
        lengths, captured = stale(look)

        def isolated() -> None:
            children.begin()
            do_in_child(lambda: (lengths.add_(1), captured.replay()))
            assert look.kinds() == ["stale-data"]

        look.watching.take()
        do_in_child(isolated)
        assert look.watching.take() == {}
        look.watching.close()


def test_a_process_that_runs_no_tests_has_no_file() -> None:
    findings = Findings()
    children = Children(findings, Watch([]))
    do_in_child(lambda: findings.add(GraphFinding("stale-data", Level.ERROR, "it is old")))
    assert not children.waits()
    assert findings.take() == {}
    children.close()


def test_where_the_process_that_ran_the_test_is_gone_a_child_goes_on() -> None:
    children = Children(findings := Findings(), Watch([]))
    children._lines._owner, children._lines._fd = -1, 0
    findings.add(GraphFinding("stale-data", Level.ERROR, "it is old"))
    assert findings.take() == {}
    assert not children.waits()


def test_what_two_processes_found_is_added() -> None:
    def found(raised: bool) -> dict[str, Any]:
        return {"kind": "stale-data", "what": "old", "lines": [["at", "a.py:1"]], "raised": raised}

    told = {"errors": [found(raised=True)], "not_judged": {"gone": 1}, "captures": 1}
    more = {
        "errors": [found(raised=False)], "suspicions": [found(raised=False)],
        "not_judged": {"gone": 2, "odd": 1}, "replays": 3, "captures": 1,
    }  # fmt: skip
    _add(told, more, late_of="")
    assert told == {
        "errors": [found(raised=False)], "suspicions": [found(raised=False)],
        "not_judged": {"gone": 3, "odd": 1}, "replays": 3, "captures": 2,
    }  # fmt: skip
