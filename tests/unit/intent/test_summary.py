"""The lines of the section "intent"."""

from __future__ import annotations

from typing import Any

from pytest_cudafork.intent.kinds import Slip
from pytest_cudafork.intent.summary import summary_lines


class Hooks:
    """What the section is written from."""

    expected: int | None = 2
    errors = frozenset({"gpu-skipped"})
    judged = frozenset({"spawned", "gpu-skipped"})
    shortage = written = failure = ""
    gone: tuple[tuple[str, str], ...] = ()
    found: tuple[Slip, ...] = ()
    known: tuple[str, ...] = ()

    def __init__(self, **about: Any) -> None:
        vars(self).update(about)

    def of(self, kind: str) -> list[Slip]:
        """Return what was found of a kind."""
        return [slip for slip in self.found if slip.kind == kind]

    def is_accepted(self, slip: Slip) -> bool:
        """Whether the baseline has it."""
        return slip.nodeid in self.known


def lines(verbose: bool = False, **about: Any) -> dict[str, set[str]]:
    """Return the lines with their colors."""
    hooks: Any = Hooks(**about)
    return {
        line: {name for name, on in markup.items() if on}
        for line, markup in summary_lines(hooks, verbose=verbose)
    }


def test_none_is_green_and_one_that_is_an_error_is_red() -> None:
    assert lines() == {
        "0 tests wanted fork and ran spawn": {"green"},
        "0 tests need a GPU and were skipped, though GPUs were expected": {"green"},
    }
    skipped, spawned = Slip("gpu-skipped", "a", "no CUDA"), Slip("spawned", "b", "threads")
    found = lines(found=(skipped, spawned))
    assert found["1 test needs a GPU and was skipped, though GPUs were expected"] == {"red"}
    assert found["1 test wanted fork and ran spawn"] == {"yellow"}
    assert found["  a: no CUDA"] == set()
    known = lines(found=(skipped,), known=("a",))
    words = "1 test needs a GPU and was skipped, though GPUs were expected (1 in the baseline)"
    assert known[words] == {"yellow"}


def test_many_are_counted_and_verbosely_named() -> None:
    many = tuple(Slip("spawned", str(number), "threads") for number in range(12))
    assert "  ... and 2 more (-v shows all)" in lines(found=many)
    assert "  11: threads" in lines(True, found=many)


def test_what_the_session_lacks_and_what_is_gone_is_told() -> None:
    found = lines(shortage="2 GPUs expected", gone=(("spawned", "a"),), failure="read-only")
    assert found["ERROR: 2 GPUs expected"] == {"red"}
    assert found["ERROR: read-only"] == {"red"}
    assert "gone from the baseline: a, which wanted fork and ran spawn no more" in found
    assert "  remove it by --cuda-fork-baseline-update=shrink" in found
    written = lines(gone=(("spawned", "a"),), written="0 tests now")
    assert "baseline written: 0 tests now" in written
    blind = lines(expected=0, judged={"spawned"}, errors=frozenset())
    assert blind["not observable: whether a test saw a GPU (add --cuda-fork-check)"] == {"yellow"}
