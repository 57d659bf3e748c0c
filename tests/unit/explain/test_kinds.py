"""The kinds of errors have names of their own, and something to do next."""

from __future__ import annotations

from pytest_cudafork.explain.kinds import KINDS


def test_each_kind_says_what_to_do() -> None:
    assert len({kind.name for kind in KINDS}) == len(KINDS)
    for kind in KINDS:
        assert kind.title
        assert kind.meaning.endswith(".")
        assert kind.next


def test_commands_that_are_named_are_there() -> None:
    known = ("python -m pytest_cudafork run", "python -m pytest_cudafork imports")
    for kind in KINDS:
        for step in kind.next:
            assert not step.startswith("python -m pytest_cudafork") or step.startswith(known)
