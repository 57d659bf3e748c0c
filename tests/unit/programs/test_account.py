"""The account of a program: its errors, what is no error, and what was not seen."""

from __future__ import annotations

from typing import Any

from pytest_cudafork.programs.account import TITLE, Account
from pytest_cudafork.programs.deeds import read_deeds
from pytest_cudafork.settings import Level
from tests.support.documents import validated

STACK = [["/w/post.py", 7, "touch", 3], ["/w/post.py", 12, "<module>", 0]]
FORKS = [["/w/post.py", 20, "<module>", 0]]
PROCESS = {"k": "process", "id": "1-1", "pid": 10, "t": 1, "ppid": 9, "argv": ["python", "post.py"]}
TOUCH = {
    "k": "touch",
    "id": "1-2",
    "pid": 10,
    "t": 2,
    "entry": "cuInit",
    "stack": STACK,
    "poisoned": False,
    "phase": "program",
}
FORK = {
    "k": "fork",
    "id": "1-3",
    "pid": 10,
    "t": 3,
    "api": "os.fork",
    "verdict": "watched",
    "stack": FORKS,
    "phase": "program",
}
CHILD = {"k": "child", "id": "2-4", "pid": 11, "t": 4, "parent": 10, "fork": "1-3", "ppid": 10}
AGAIN = {**TOUCH, "id": "2-5", "pid": 11, "t": 5, "poisoned": True}


def account(*records: dict[str, Any], lost: tuple[str, ...] = (), **more: Any) -> Account:
    """Return the account of a program that wrote these records."""
    deeds = read_deeds(records, 10, {}, Level.POISON, lost)
    given = {"command": ("python", "post.py"), "exitcode": 1, "seconds": 0.25, "simulated": False}
    return Account(**{**given, **more, "deeds": deeds})


def test_a_poisoned_child_is_told_with_all_three_lines() -> None:
    found = account(PROCESS, TOUCH, FORK, CHILD, AGAIN)
    assert not found.is_good
    text = found.text()
    assert text.startswith(f"{TITLE}\npython post.py: exited with status 1 after 0.2 s\n")
    assert (
        "a forked child touched CUDA at /w/post.py:7: CUDA was initialized at /w/post.py:7" in text
    )
    assert "the child was forked by\n    /w/post.py:20" in text
    assert "touched CUDA by cuInit in process 10\n" in text  # and of no test
    assert "    /w/post.py:20: made; only --guard refuses forks\n" in text
    assert "touches: 2, forks while initialized: 1, poisoned children: 1" in text
    assert "also touched by" not in text


def test_a_program_whose_captures_nobody_looked_at_is_not_good() -> None:
    captures = {"k": "captures", "id": "1-7", "pid": 10, "t": 7}
    found = account(PROCESS, {**captures, "found": {"broken": "KeyError: 'a'"}})
    assert not found.is_good
    assert "not observable: captured graphs were not looked at: KeyError: 'a'\n" in found.text()
    assert account(PROCESS, {**captures, "found": {"judged": 2, "elsewhere": True}}).is_good


def test_a_fork_that_has_done_no_harm_yet_is_told_and_is_no_error() -> None:
    found = account(PROCESS, TOUCH, FORK, CHILD)
    assert found.is_good
    text = found.text()
    assert "CUDA was initialized by\n    /w/post.py:7: in touch" in text
    assert "what to do:" in text
    assert "poisoned children: 1, of which touched CUDA: 0" in text
    assert "no fork was seen" not in text


def test_a_process_that_was_forked_to_start_a_program_is_no_poisoned_child() -> None:
    text = account(PROCESS, TOUCH, {**CHILD, "fork": "", "program": True}).text()
    assert "poisoned children: 0, " in text
    assert "no fork was seen after that, so no child is affected" in text


def test_a_touch_alone_needs_no_advice() -> None:
    other = {**TOUCH, "id": "1-9", "t": 9, "stack": [["/w/other.py", 1, "f", 3]]}
    text = account(PROCESS, TOUCH, other).text()
    assert "what to do:" not in text
    assert text.count("\nno fork was seen after that, so no child is affected: ") == 1
    assert "also touched by:\n    /w/other.py:1: in f\n" in text


def test_nothing_seen_differs_from_nobody_watching() -> None:
    clean = account(PROCESS)
    assert clean.is_good
    assert "no touch of CUDA was seen; watched: 1 Python process\n" in clean.text()
    blind = account()
    assert not blind.is_good
    assert "nothing was watched; watched: 0 Python processes\nnot observable: " in blind.text()
    lost = account(PROCESS, lost=("a line is cut short",))
    assert not lost.is_good
    assert "not observable: a line is cut short" in lost.text()


REFUSED = {**FORK, "verdict": "guarded"}
ENDED = {
    "k": "caught",
    "id": "1-5",
    "pid": 10,
    "t": 5,
    "fork": "1-3",
    "filename": "/w/post.py",
    "line": 0,
    "function": "<module>",
    "by_name": False,
}


def test_what_the_error_has_told_that_ended_the_program_is_told_in_short_behind_it() -> None:
    found = account(PROCESS, TOUCH, REFUSED, {**ENDED, "printed": "1:2"})
    whole, short = found.text(), found.text(follows="1:2")
    assert "what to do:" in whole
    assert "as above" not in whole
    assert found.text(follows="1:3") == whole
    assert "fork refused at /w/post.py:20: CUDA was initialized at /w/post.py:7" in short
    assert "as above: told in full at the error that ended process 10\n" in short
    assert "what to do:" not in short
    assert found.as_plain()["findings"][0]["story"] in whole


def test_an_error_that_nobody_has_seen_is_told_in_full_behind_the_program() -> None:
    caught = {**ENDED, "line": 9, "function": "main"}
    for ending in ([ENDED], [caught], []):
        found = account(PROCESS, TOUCH, REFUSED, *ending)
        assert found.text(follows="1:2") == found.text()


def test_what_runs_on_is_named() -> None:
    text = account(PROCESS, running=((55, "sleep\n9"),)).text()
    assert "is not seen:\n    55 sleep\\n9\n" in text


def test_many_places_are_cut() -> None:
    touches = [
        {**TOUCH, "id": f"1-{n}", "t": n, "stack": [["/w/a.py", n, "f", 3]]} for n in range(2, 14)
    ]
    assert "... and 3 more" in account(PROCESS, *touches).text()


def test_code_within_a_process_has_no_command() -> None:
    assert "exited" not in account(PROCESS, command=(), exitcode=None).text()


def test_plain_data_has_all_of_it() -> None:
    data = account(PROCESS, TOUCH, FORK, CHILD, AGAIN, running=((5, "x"),)).as_plain()
    assert validated(data, "run") == data
    assert data["exit_status"] == 1
    assert data["good"] is False
    (finding,) = data["findings"]
    assert finding["error"] == "PoisonedTouchError"
    assert finding["culprit"] == "/w/post.py:7"
    assert finding["process"] == 11
    assert [touch["poisoned"] for touch in data["touches"]] == [False, True]
    assert data["touches"][0]["stack"][1] == {
        "file": "/w/post.py",
        "line": 12,
        "function": "<module>",
        "code": "",
    }
    assert data["forks"][0]["place"] == "/w/post.py:20"
    assert data["running"] == [{"process": 5, "command": "x"}]
    assert data["processes"] == {"10": "python post.py"}
