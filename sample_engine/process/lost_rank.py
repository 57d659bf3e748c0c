"""What is said of an engine's processes that are dead, or that do not go on."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence

from sample_engine.process.messages import Failed
from sample_engine.process.rank_process import RankProcess

__all__ = ["words_on_dead", "words_on_stuck"]

# In the stack of a rank that waits for others.
_WAITS = "parallel/group.py"


def words_on_dead(ranks: Sequence[RankProcess]) -> str:
    """What became of the processes: of those that died for themselves, not after another one."""
    dead = [rank for rank in ranks if rank.wait_for_end(0)] or ranks[:1]
    codes = [(rank, rank.exit_code()) for rank in dead]
    # A signal comes from outside. With an exit code a rank ends that misses another one, too.
    killed = [(rank, code) for rank, code in codes if code is not None and code < 0]
    failed = [(rank, code) for rank, code in codes if code != 0]
    lines = []
    for rank, code in killed or failed or codes:
        words = rank.last_words()
        said = f"\nIt last wrote on its stderr:\n{words}" if words else ""
        lines.append(f"{rank.name} {_ending(code)}.{said}")
    return "\n".join(lines)


def words_on_stuck(ranks: Sequence[RankProcess], said: Mapping[int, Failed]) -> str:
    """What each rank does while one of them is waited for; ``said`` is what they have told."""
    parts: list[str] = []
    stopped: list[str] = []
    elsewhere: list[str] = []
    for number, rank in enumerate(ranks):
        if rank.is_stopped():
            stopped.append(f"{rank.name} was stopped by a signal (SIGSTOP, SIGTSTP)")
            parts.append(f"{rank.name} is stopped by a signal, and can say nothing.")
            continue
        failed = said.get(number)
        stack = failed.traceback if failed is not None else rank.stacks()
        told = f" {failed.text}" if failed is not None else ""
        if _WAITS not in stack:
            elsewhere.append(f"{rank.name} is in something else")
        shown = f"\n{stack.rstrip()}" if stack else "\nIt does not write its stacks."
        parts.append(f"{rank.name}:{told}{shown}")
    which = "; ".join(stopped or elsewhere) if len(elsewhere) < len(ranks) else ""
    first = "The ranks of the engine wait for each other, and were ended"
    return "\n".join([f"{first}: {which}." if which else f"{first}.", *parts])


def _ending(code: int | None) -> str:
    """What became of a process."""
    if code is None:
        return "does not speak any more, and what became of it is not known"
    if code >= 0:
        return f"ended by itself with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = ""
    if -code == signal.SIGKILL:
        hint = ", as the system does when memory runs out (see dmesg), or somebody with kill -9"
    return f"was killed by {name}{hint}"
