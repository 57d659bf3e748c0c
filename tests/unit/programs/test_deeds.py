"""What is read out of the ledger of one run."""

from __future__ import annotations

import multiprocessing
from typing import Any

import pytest

from pytest_cudafork.errors import CudaForkError, PoisonedTouchError
from pytest_cudafork.programs.deeds import Deeds, First, read_deeds
from pytest_cudafork.settings import Level
from pytest_cudafork.settings.environment import COMMON_METHOD

FIRST, CHILD = 10, 11
DEFAULT = multiprocessing.get_all_start_methods()[0]


def record(kind: str, pid: int = FIRST, line: int = 1, **fields: Any) -> dict[str, Any]:
    """Return a record whose stack is one line of ``/w/post.py``."""
    stack = [["/w/post.py", line, "main", 3]]
    return {"k": kind, "id": f"{kind}-{pid}-{line}", "pid": pid, "stack": stack, **fields}


BEGUN = {"k": "process", "id": "p", "pid": FIRST, "argv": ["python", "post.py"]}


def read(
    *records: dict[str, Any], env: dict[str, str] | None = None, level: Level = Level.FORK
) -> Deeds:
    """Read records of a run whose first process is watched."""
    return read_deeds([BEGUN, *records], FIRST, env or {}, level, [])


def test_touches_forks_and_starts_have_their_lines() -> None:
    deeds = read(
        record("touch", line=3, entry="cuInit"),
        record("fork", line=5, api="os.fork", verdict="guarded"),
        record("start", line=6, method="spawn"),
    )
    assert deeds.processes == {FIRST: "python post.py"}
    assert [touch.where for touch in deeds.touches] == ["/w/post.py:3"]
    [fork] = deeds.forks
    assert (fork.pid, fork.api, fork.verdict, fork.place) == (
        FIRST,
        "os.fork",
        "guarded",
        "/w/post.py:5",
    )
    [start] = deeds.starts
    assert (start.method, start.place) == ("spawn", "/w/post.py:6")
    assert [found.error for found in deeds.findings] == [CudaForkError]


@pytest.mark.parametrize(("level", "found"), [(Level.POISON, [PoisonedTouchError])])
def test_a_poisoned_touch_is_a_finding_at_every_level(level: Level, found: list[type]) -> None:
    touch = record("touch", CHILD, poisoned=True)
    assert [each.error for each in read(touch, level=level).findings] == found


def test_a_refusal_caught_by_its_name_is_none() -> None:
    fork = record("fork", api="os.fork", verdict="guarded")
    caught = {"k": "caught", "id": "c", "pid": FIRST, "fork": fork["id"], "by_name": True}
    assert read(fork, caught).findings == ()


def test_harmless_forks_are_no_findings() -> None:
    deeds = read(record("fork", api="os.fork", verdict="clean"))
    assert (len(deeds.forks), deeds.findings) == (1, ())


def test_without_a_choice_the_method_is_pythons_default() -> None:
    method = read().start_method
    assert method.method == DEFAULT
    assert method.why.startswith("the default of Python 3.")


def test_who_chose_the_method_last_is_told() -> None:
    method = read(
        record("method", line=2, method="spawn"),
        record("method", CHILD, line=3, method="fork"),
        record("method", line=4, method="forkserver"),
    ).start_method
    assert method.method == "forkserver"
    assert method.why == "set by set_start_method at /w/post.py:4 in main"


def test_a_choice_taken_back_is_the_default() -> None:
    assert read(record("method", method="")).start_method.method == DEFAULT


def test_a_variable_that_was_not_heeded_is_told() -> None:
    chosen = record("method", line=2, method="spawn")
    heeded = read(chosen, env={COMMON_METHOD: "spawn"}).start_method
    assert COMMON_METHOD not in heeded.why
    unheeded = read(chosen, env={COMMON_METHOD: "fork"}).start_method
    assert unheeded.why.endswith(
        f"; {COMMON_METHOD}=fork is set, which multiprocessing does not read"
    )


def test_what_could_not_be_seen_is_told() -> None:
    watch = {"k": "watch", "id": "w", "pid": FIRST, "limits": ["the line of a touch"]}
    assert read(watch, watch).unseen == ("the line of a touch",)
    blind = read_deeds([watch], FIRST, {}, Level.FORK, ["1 line is cut short"]).unseen
    assert blind[0].startswith("the program's first process was not watched")
    assert blind[1:] == ("the line of a touch", "1 line is cut short")


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (First.PYTHON, "the program's first process was not watched (it ended before"),
        (First.SEEN, "forks of the program's first process, which is no Python"),
        (First.UNSEEN, "what the program's first process does, which is no Python"),
    ],
)
def test_a_first_process_that_was_not_watched_is_said_to_be_so(first: First, words: str) -> None:
    child, touch = {**BEGUN, "pid": CHILD}, record("touch", entry="cuInit")
    for records, judged in (([], False), ([child], True), ([touch], True)):
        deeds = read_deeds(records, FIRST, {}, Level.POISON, [], first=first)
        assert deeds.unseen[0].startswith(words)
        assert deeds.judged == (judged and first is not First.PYTHON)
    assert read().judged
    assert read().unseen == ()


def test_a_script_that_is_not_there_is_not_said_to_have_touched_nothing() -> None:
    deeds = read_deeds([BEGUN], FIRST, {}, Level.POISON, [], first=First.NOT_THERE)
    assert not deeds.judged
    [words] = deeds.unseen
    assert words.startswith("the program, as there is no such file and nothing ran: ")


def test_what_became_of_a_fork_is_said_in_words() -> None:
    known = ("clean", "watched", "guarded", "allowed", "accepted", "unguarded", "unknown")
    fates = [read(record("fork", verdict=one)).forks[0].fate for one in known]
    assert fates[2] == "refused"
    assert all(fate.startswith("made") for fate in (*fates[:2], *fates[3:]))
    assert read(record("fork", verdict="later")).forks[0].fate == "later"
