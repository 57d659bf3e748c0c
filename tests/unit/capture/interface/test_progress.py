"""What a check is at is shown by whoever wants to, and by nobody else."""

from __future__ import annotations

from pytest_cudafork.capture.interface.progress import now_at, shown_by


def test_what_a_check_is_at_goes_to_the_innermost_who_shows_it() -> None:
    outer: list[str] = []
    inner: list[str] = []
    now_at("nobody looks")
    with shown_by(outer.append):
        now_at("one")
        with shown_by(inner.append):
            now_at("two")
        now_at("three")
    now_at("nobody looks")
    assert (outer, inner) == (["one", "three"], ["two"])
