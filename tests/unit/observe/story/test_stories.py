"""The stories: who initialized, who forked, who touched, out of any ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_cudafork.observe.story.stories import (
    History,
    Within,
    fork_story,
    poison_story,
    touch_story,
)
from pytest_cudafork.observe.story.touch import Frame, Touch, frames_from
from pytest_cudafork.settings import environment

PARENT, CHILD, GRANDCHILD = 100, 200, 300
OPTIMIZED = 1


def touch(pid: int, t: int, line: int, *, poisoned: bool = False, **fields: Any) -> dict[str, Any]:
    stack = [["/src/engine.py", line, "probe", OPTIMIZED]]
    ids = {"id": f"{pid}-{t}", "t": t, "pid": pid, "owner": str(PARENT)}
    return {"k": "touch", **ids, "entry": "cuInit", "poisoned": poisoned, "stack": stack, **fields}


def fork(pid: int, t: int, line: int) -> dict[str, Any]:
    stack = [["/src/launch.py", line, "start", OPTIMIZED]]
    return {
        "k": "fork",
        "id": f"{pid}-{t}",
        "t": t,
        "pid": pid,
        "verdict": "watched",
        "stack": stack,
    }


def child(pid: int, parent: int, fork_id: str) -> dict[str, Any]:
    return {"k": "child", "id": f"{pid}-0", "pid": pid, "parent": parent, "fork": fork_id}


FAMILY = [
    touch(PARENT, 1, 11),
    touch(PARENT, 2, 12),
    fork(PARENT, 3, 21),
    child(CHILD, PARENT, "100-3"),
    fork(CHILD, 4, 22),
    child(GRANDCHILD, CHILD, "200-4"),
    touch(GRANDCHILD, 5, 13, poisoned=True),
]


def test_ancestors_are_followed_through_the_forks() -> None:
    history = History(FAMILY)
    assert history.ancestors(GRANDCHILD) == [GRANDCHILD, CHILD, PARENT]
    assert history.ancestors(PARENT) == [PARENT]
    assert history.ancestors(999) == [999]


def test_ancestors_end_in_a_ledger_whose_pids_were_used_twice() -> None:
    loop = [child(CHILD, GRANDCHILD, ""), child(GRANDCHILD, CHILD, "")]
    assert History(loop).ancestors(CHILD) == [CHILD, GRANDCHILD]


def test_the_initializer_is_the_first_touch_of_the_process_or_its_nearest_ancestor() -> None:
    history = History(FAMILY)
    for pid in (PARENT, CHILD, GRANDCHILD):
        initializer = history.initializer(pid)
        assert initializer is not None
        assert initializer.id == "100-1"
    assert history.initializer(999) is None


def test_the_fork_of_a_process_is_the_one_that_made_it() -> None:
    history = History(FAMILY)
    assert history.fork_of(GRANDCHILD)[0].lineno == 22
    assert history.fork_of(CHILD)[0].lineno == 21
    assert history.fork_of(PARENT) == ()


def test_the_story_of_a_poisoned_grandchild_has_its_three_parts_in_order() -> None:
    history = History(FAMILY)
    story = poison_story(history, history.touches[-1])
    parts = [
        "process 300 was forked from an initialized process and touched CUDA",
        "CUDA was initialized in the parent by",
        "/src/engine.py:11: in probe",
        "the child was forked by",
        "/src/launch.py:22 in start",
        "the child touched CUDA at",
        "/src/engine.py:13: in probe",
    ]
    places = [story.find(part) for part in parts]
    assert -1 not in places
    assert places == sorted(places)


def test_what_was_not_seen_is_said_to_be_not_seen() -> None:
    lonely = History([touch(CHILD, 5, 13, poisoned=True)])
    story = poison_story(lonely, lonely.touches[0])
    assert "something that was not seen" in story
    assert "a fork that was not seen" in story
    story = fork_story(History([]), PARENT, "os.fork", (), why="the driver says so")
    assert "something that was not seen (the driver says so)" in story
    assert "unknown code" in story


def test_a_fork_in_native_code_is_told_with_the_last_touch_before_it() -> None:
    history = History([touch(PARENT, 1, 11), touch(CHILD, 5, 13, poisoned=True)])
    poisoner = history.poisoner(history.touches[1])
    assert poisoner is not None
    assert poisoner.id == "100-1"


@pytest.mark.parametrize("ppid", [PARENT, 1, None])
def test_a_fork_in_native_code_comes_from_the_parent_or_the_pytest_process(ppid: object) -> None:
    script = touch(555, 1, 50)
    mine = [touch(PARENT, 2, 11), touch(PARENT, 3, 12), touch(666, 4, 60)]
    late = touch(CHILD, 5, 13, poisoned=True, ppid=ppid)
    refused = {**fork(GRANDCHILD, 6, 9), "state": "poisoned", "ppid": ppid, "owner": str(PARENT)}
    history = History([script, *mine, late, refused])
    for found in (history.poisoner(history.touches[-1]), history.initializer(GRANDCHILD)):
        assert found is not None
        assert found.id == "100-2"


def test_a_fork_past_the_guard_says_why_it_was_not_refused() -> None:
    frames = frames_from([["/src/launch.py", 21, "start", OPTIMIZED]])
    story = fork_story(History(FAMILY), PARENT, "os.fork", frames, why="", refused=False)
    assert story.startswith("fork past the guard at /src/launch.py:21: CUDA was initialized at ")
    assert "kept before the plugin came" in story
    assert "handler of os.register_at_fork" in story
    assert "fork refused" not in story


@pytest.mark.parametrize(
    ("caught", "words"),
    [
        (
            {"line": 3, "function": "start"},
            "was caught, without its name, by\n    /src/launch.py:3",
        ),
        ({"line": 9, "function": "Thread._bootstrap_inner"}, "ended the thread that forked"),
        ({"line": 0, "function": "<module>"}, "the error ended the process (/src/launch.py)"),
        ({"line": 0, "function": "start"}, "the error was lost in start (/src/launch.py)"),
    ],
)
def test_a_refusal_that_was_swallowed_says_where(caught: dict[str, Any], words: str) -> None:
    record = {"k": "caught", "pid": 1, "fork": "f", "filename": "/src/launch.py", **caught}
    story = fork_story(History([record]), 1, "os.fork", (), why="", fork_id="f")
    assert words in story
    assert "pytest.raises(CudaForkError)" in story
    named = fork_story(
        History([{**record, "by_name": True}]), 1, "os.fork", (), why="", fork_id="f"
    )
    assert words not in named


@pytest.mark.parametrize(
    ("test", "phase", "words", "by_name"),
    [
        ("test_a.py::test_a (call)", "", "@pytest.mark.cuda_fork_ok(reason='...')", True),
        ("", "collect test_a.py", "--cuda-fork-allow=MODULE", True),
        ("", "start", "--cuda-fork-allow=MODULE", True),
        ("", "", "--cuda-fork-allow=MODULE", True),
        ("", environment.PROGRAM, "--allow MODULE", False),
    ],
)
def test_how_to_allow_a_fork_goes_by_what_it_was_made_in(
    test: str, phase: str, words: str, by_name: bool
) -> None:
    caught = {
        "k": "caught",
        "pid": 1,
        "fork": "f",
        "filename": "/src/a.py",
        "line": 3,
        "function": "a",
    }
    within = Within.of(test, phase)
    story = fork_story(History([caught]), 1, "os.fork", (), why="", fork_id="f", within=within)
    assert story.endswith(f"(the child never uses CUDA), {within.value}.")
    assert words in within.value
    assert ("pytest.raises" in story) is by_name


def test_the_story_of_a_refused_fork_counts_the_later_touches() -> None:
    frames = frames_from([["/src/launch.py", 21, "start", OPTIMIZED]])
    story = fork_story(History(FAMILY), PARENT, "os.fork", frames, why="")
    assert "/src/engine.py:11: in probe" in story
    assert "os.fork was called by\n    /src/launch.py:21 in start" in story
    assert "touched again since" in story
    assert "/src/engine.py:12: in probe" in story
    assert "@pytest.mark.cuda_fork_ok(reason='...')" in story
    many = [touch(PARENT, t, t) for t in range(1, 100)]
    assert len(fork_story(History(many), PARENT, "os.fork", frames, why="").splitlines()) < 40


def test_a_fork_by_pytest_alone_says_so_and_in_which_test() -> None:
    site = "/venv/lib/python3.11/site-packages"
    frames = (Frame(f"{site}/_pytest/runner.py", 568, "SetupState.teardown_exact", OPTIMIZED),)
    during = "test_a.py::test_a (teardown)"
    story = fork_story(History(FAMILY), PARENT, "os.fork", frames, why="", during=during)
    _, _, by = story.partition("os.fork was called by\n")
    first, says, test, *_ = by.split("\n")
    assert first == "    _pytest/runner.py:568 in SetupState.teardown_exact"
    assert says.startswith("    no line of yours is in the stack: pytest calls")
    assert test == "    in test_a.py::test_a (teardown)"
    mine = (*frames, Frame("/src/launch.py", 9, "start", OPTIMIZED))
    assert during not in fork_story(History(FAMILY), PARENT, "os.fork", mine, why="", during=during)


def begins(pid: int, t: int, **fields: Any) -> dict[str, Any]:
    return {"k": "process", "id": f"p{pid}-{t}", "t": t, "pid": pid, **fields}


EXECS = [
    touch(PARENT, 1, 11),
    fork(PARENT, 2, 21),
    {**child(CHILD, PARENT, "100-2"), "t": 3},
    begins(PARENT, 4),
    touch(PARENT, 5, 12),
    touch(PARENT, 6, 14),
    fork(PARENT, 7, 22),
    {**child(GRANDCHILD, PARENT, "100-7"), "t": 8},
    touch(CHILD, 9, 13, poisoned=True),
    touch(GRANDCHILD, 10, 13, poisoned=True),
    begins(GRANDCHILD, 11),
]
"""A process forks, becomes another program by exec, and that forks, too."""


def test_an_exec_begins_anew_and_its_past_is_blamed_for_nothing() -> None:
    history = History(EXECS)
    assert [history.initializer(PARENT, t).id for t in (2, 7)] == ["100-1", "100-5"]  # type: ignore[union-attr]
    late = [one for one in history.touches if one.poisoned]
    assert [history.poisoner(one).id for one in late] == ["100-1", "100-5"]  # type: ignore[union-attr]
    assert [history.fork_of(one.pid, one.time_ns)[0].lineno for one in late] == [21, 22]
    assert history.ancestors(GRANDCHILD) == [GRANDCHILD]
    assert history.ancestors(GRANDCHILD, 10) == [GRANDCHILD, PARENT]
    first = fork_story(history, PARENT, "os.fork", (), why="", moment=2)
    second = fork_story(history, PARENT, "os.fork", (), why="", moment=7)
    assert "engine.py:12" not in first
    assert "touched again since" not in first
    assert "engine.py:11" not in second
    assert "touched again since:\n    /src/engine.py:14" in second
    assert History([touch(PARENT, 1, 11), begins(PARENT, 4)]).initializer(PARENT) is None


def test_a_touch_told_in_short_has_its_own_test_and_callers_unless_they_stand_there() -> None:
    stack = [["/t/util.py", 5, "probe", OPTIMIZED], ["/t/test_b.py", 9, "test_b", OPTIMIZED]]
    seen = Touch.from_record(touch(7, 1, 5, test="t/test_b.py::test_b (call)", stack=stack))
    short = touch_story(seen, told_at="t/test_a.py::test_a")
    assert "in process 7, in t/test_b.py::test_b (call)" in short
    assert "called from:\n        /t/test_b.py:9 in test_b" in short
    assert "called from:" not in touch_story(seen, told_at="t/test_b.py::test_b")
    whole_line = Touch.from_record(touch(7, 1, 5))
    assert len(touch_story(whole_line, told_at="t/test_a.py::test_a").splitlines()) == 5


def test_only_a_simulated_driver_is_called_a_stand_in() -> None:
    history = History(FAMILY)
    for simulated in (True, False):
        stories = (
            poison_story(history, history.touches[-1], simulated=simulated),
            fork_story(history, PARENT, "os.fork", (), why="", simulated=simulated),
        )
        for story in stories:
            assert ("phantom driver stands in" in story) == simulated


def test_the_story_of_a_touch_shows_source_and_advice(tmp_path: Path) -> None:
    source = tmp_path / "engine.py"
    source.write_text("import x\nCOUNT = x.count()\n")
    frames = (
        Frame(str(source), 2, "<module>", 0),
        Frame("<frozen importlib._bootstrap>", 1, "_call_with_frames_removed", OPTIMIZED),
        Frame("/src/test_a.py", 3, "<module>", 0),
    )
    record = touch(PARENT, 1, 1, phase="collect test_a.py")
    record["stack"] = [[f.filename, f.lineno, f.name, f.flags] for f in frames]
    story = touch_story(Touch.from_record(record))
    assert f"{source}:2: module constant COUNT, evaluated at import" in story
    assert "> COUNT = x.count()" in story
    assert "while test_a.py was collected" in story
    assert "what to do:" in story


@pytest.mark.parametrize("told_at", ["", "test_b.py::test_b"])
@pytest.mark.parametrize("may_fork", [False, True])
def test_the_story_of_a_touch_says_how_to_accept_it(told_at: str, may_fork: bool) -> None:
    record = touch(PARENT, 1, 1, test="test_a.py::test_a (call)")
    record["stack"] = [["/src/engine.py", 2, "probe", OPTIMIZED]]
    story = touch_story(Touch.from_record(record), told_at=told_at, may_fork=may_fork)
    how = "accept its line: --cuda-fork-baseline=FILE --cuda-fork-baseline-update."
    assert story.endswith(how) is (not told_at)  # else it is told there
    assert ("cuda_fork_ok allows forks, and no touch" in story) is may_fork
    assert "start the children" not in story


@pytest.mark.parametrize("stack", [[], [["<string>", 2, "probe", OPTIMIZED]]])
def test_a_touch_without_a_line_of_its_own_cannot_be_accepted(stack: list[Any]) -> None:
    record = touch(PARENT, 1, 1, test="test_a.py::test_a (call)")
    record["stack"] = stack
    assert "--cuda-fork-baseline" not in touch_story(Touch.from_record(record))


_values = st.none() | st.integers() | st.text(max_size=5)
_stacks = st.lists(
    st.tuples(st.text(max_size=9), st.integers(0, 99), st.text(max_size=5), st.integers(-1, 3)),
    max_size=4,
)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "k": st.sampled_from(["touch", "fork", "child", "process"]),
                "id": st.sampled_from("abc"),
                "pid": st.integers(1, 4),
            },
            optional={
                "t": st.integers(0, 9),
                "poisoned": st.booleans(),
                "parent": st.integers(0, 4),
                "early": st.booleans(),
                "began": st.booleans(),
                "fork": st.sampled_from("abc"),
                "stack": _stacks,
                "test": st.text(max_size=5),
                "phase": st.text(max_size=5),
                "entry": _values,
            },
        ),
        max_size=8,
    )
)
def test_no_ledger_is_too_odd_to_be_told(records: list[dict[str, Any]]) -> None:
    history = History(records)
    for one in history.touches:
        assert poison_story(history, one)
        assert touch_story(one)
        assert fork_story(history, one.pid, "os.fork", one.frames, why="why")


@given(st.integers(0, len(EXECS)), st.sampled_from([FAMILY, EXECS]))
def test_a_history_that_has_grown_is_as_one_that_is_made_at_once(
    first: int, records: list[dict[str, Any]]
) -> None:
    grown = History(records[:first])
    for pid in (PARENT, CHILD, GRANDCHILD):
        grown.initializer(pid)
    for record in records[first:]:
        grown.add([record])
    whole = History(records)
    assert (grown.records, grown.touches) == (whole.records, whole.touches)
    for pid in (PARENT, CHILD, GRANDCHILD):
        assert grown.ancestors(pid) == whole.ancestors(pid)
        assert grown.initializer(pid) == whole.initializer(pid)
        assert grown.fork_of(pid) == whole.fork_of(pid)
    for touched in whole.touches:
        assert grown.poisoner(touched) == whole.poisoner(touched)
