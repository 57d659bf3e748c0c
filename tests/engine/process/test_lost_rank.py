"""The words on processes that are dead or do not go on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from sample_engine.process.lost_rank import words_on_dead, words_on_stuck
from sample_engine.process.messages import Failed
from sample_engine.process.rank_process import RankProcess


class Process:
    """A process in some state."""

    def __init__(
        self,
        rank: int,
        code: int | None = None,
        *,
        alive: bool = False,
        words: str = "",
        stack: str = "",
        stopped: bool = False,
    ) -> None:
        self.name = f"Rank {rank}"
        self._code, self._alive = code, alive
        self._words, self._stack, self._stopped = words, stack, stopped

    def wait_for_end(self, seconds: float) -> bool:
        """Whether it is dead."""
        return not self._alive

    def exit_code(self) -> int | None:
        """How it ended."""
        return self._code

    def last_words(self) -> str:
        """Its stderr."""
        return self._words

    def stacks(self) -> str:
        """What it does."""
        return self._stack

    def is_stopped(self) -> bool:
        """Whether a signal has stopped it."""
        return self._stopped


def ranks(*each: Process) -> Sequence[RankProcess]:
    """They stand in for real ones."""
    return cast(Sequence[RankProcess], each)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "ended by itself with exit code 0"),
        (3, "ended by itself with exit code 3"),
        (-11, "was killed by SIGSEGV"),
        (-9, "was killed by SIGKILL, as the system does when memory runs out"),
        (-63, "was killed by signal 63"),
        (None, "does not speak any more, and what became of it is not known"),
    ],
)
def test_each_end_has_its_words(code: int | None, words: str) -> None:
    text = words_on_dead(ranks(Process(0, code, words="the cache is corrupt")))
    assert text.startswith(f"Rank 0 {words}")
    assert text.endswith(".\nIt last wrote on its stderr:\nthe cache is corrupt")


def test_a_rank_that_died_for_itself_is_told_of_and_not_those_that_followed_it() -> None:
    alive = Process(2, alive=True)
    assert words_on_dead(ranks(Process(0, 1), Process(1, -11), alive)) == (
        "Rank 1 was killed by SIGSEGV."
    )
    assert words_on_dead(ranks(Process(0, 3), Process(1, 0), alive)) == (
        "Rank 0 ended by itself with exit code 3."
    )
    assert words_on_dead(ranks(Process(0, -11), Process(1, -6), alive)).splitlines() == [
        "Rank 0 was killed by SIGSEGV.",
        "Rank 1 was killed by SIGABRT.",
    ]


def failed(stack: str) -> Failed:
    return Failed("running", "RankLostError", "A step has not ended for 5 seconds.", stack)


WAITS = '  File "sample_engine/parallel/group.py", line 1, in all_reduce'
WORKS = '  File "sample_engine/model/ops.py", line 1, in linear'


@pytest.mark.parametrize(
    ("states", "first"),
    [
        ([{"stack": WAITS}, {"stopped": True}], "ended: Rank 1 was stopped by a signal"),
        ([{"stack": WORKS}, {"stopped": True}], "ended: Rank 1 was stopped by a signal"),
        ([{"stack": WORKS}, {"stack": WAITS}], "ended: Rank 0 is in something else."),
        ([{"stack": WAITS}, {"stack": ""}], "ended: Rank 1 is in something else."),
        ([{"stack": WAITS}, {"stack": WAITS}], "and were ended."),
        ([{"stack": WORKS}, {"stack": WORKS}], "and were ended."),
    ],
)
def test_the_rank_that_the_others_wait_for_is_named_where_it_shows(
    states: list[dict[str, Any]], first: str
) -> None:
    text = words_on_stuck(ranks(*(Process(n, **state) for n, state in enumerate(states))), {})
    line, _, rest = text.partition("\n")
    assert first in line
    assert "Rank 0" in rest
    assert "Rank 1" in rest


def test_what_a_rank_has_said_stands_in_place_of_its_stacks() -> None:
    text = words_on_stuck(ranks(Process(0, stack="not asked"), Process(1)), {0: failed(WAITS)})
    assert f"Rank 0: A step has not ended for 5 seconds.\n{WAITS}" in text
    assert text.endswith("Rank 1:\nIt does not write its stacks.")
    assert "not asked" not in text
