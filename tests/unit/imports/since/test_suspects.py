"""An import that a change has broken of which git does not tell is repeated until it is clean."""

from __future__ import annotations

from pytest_cudafork.imports.since.record import ImportsRecord, SeenImport
from pytest_cudafork.imports.since.suspects import Suspected

MADE, OTHER = "pkg/_made.py", "pkg/_other.py"
CLEAN = SeenImport(frozenset({"pkg/a.py", MADE}), "clean")
TOUCHES = SeenImport(frozenset({"pkg/a.py", MADE}), "touches", "pkg/_made.py:1")


def suspected(
    seen: SeenImport | None, *untold: str, shared: frozenset[str] = frozenset()
) -> Suspected:
    imports = {} if seen is None else {"pkg::pkg.a": seen}
    return Suspected(ImportsRecord({}, imports=imports, shared=shared), frozenset(untold))


def test_what_an_import_came_upon_is_suspected_until_it_is_clean() -> None:
    first = suspected(CLEAN, MADE, OTHER).imported("pkg::pkg.a", TOUCHES)
    assert first.suspects == {MADE}
    again = suspected(first).imported("pkg::pkg.a", TOUCHES)
    assert again.suspects == {MADE}
    assert suspected(again).imported("pkg::pkg.a", CLEAN).suspects == frozenset()


def test_what_was_not_clean_before_the_change_is_not_suspected() -> None:
    assert suspected(TOUCHES, MADE).imported("pkg::pkg.a", TOUCHES).suspects == frozenset()


def test_another_line_is_another_matter() -> None:
    elsewhere = SeenImport(TOUCHES.files, "touches", "pkg/a.py:1")
    assert suspected(elsewhere, MADE).imported("pkg::pkg.a", TOUCHES).suspects == {MADE}


def test_of_an_import_of_which_little_is_known_all_changes_are_suspected() -> None:
    crashed = SeenImport(None, "crashes")
    assert suspected(CLEAN, MADE, OTHER).imported("pkg::pkg.a", crashed).suspects == {MADE, OTHER}
    assert suspected(None, OTHER).imported("pkg::pkg.a", TOUCHES).suspects == {OTHER}
    assert suspected(None).imported("pkg::pkg.a", TOUCHES).suspects == frozenset()


def test_what_imports_share_any_of_them_may_have_come_upon() -> None:
    shared = suspected(CLEAN, OTHER, shared=frozenset({OTHER}))
    assert shared.imported("pkg::pkg.a", TOUCHES).suspects == {OTHER}


def test_an_import_that_was_left_out_keeps_the_suspicion() -> None:
    left_out = suspected(CLEAN, MADE).not_imported("pkg::pkg.a")
    assert left_out == SeenImport(None, "clean", suspects=frozenset({MADE}))
    assert suspected(left_out).imported("pkg::pkg.a", TOUCHES).suspects == {MADE}
    assert Suspected(None, frozenset()).not_imported("pkg::pkg.a") == SeenImport(None)
