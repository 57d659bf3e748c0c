"""What the imports of one fork server load again and again, until the fork server has it."""

from __future__ import annotations

import sys

import pytest

from pytest_cudafork.imports.worker import preload
from pytest_cudafork.imports.worker.preload import RepeatedImports, others


def test_other_packages_are_named_without_their_modules_and_the_standard_library() -> None:
    loaded = ["pkg", "pkg.a", "lib", "lib.inner", "json", "json.decoder", "fast"]
    assert others(loaded, "pkg.a") == ["lib", "fast"]


def test_what_many_have_loaded_is_named_once_enough_time_was_lost() -> None:
    repeated = RepeatedImports()
    repeated.add(["lib", "lib.inner", "pkg.a"], 1.0)
    assert repeated.next() == [], "one import proves nothing"
    repeated.add(["lib", "pkg.b"], 1.0)
    assert repeated.next() == ["lib"]
    repeated.add(["lib", "pkg.c"], 0.1)
    repeated.add(["lib", "pkg.d"], 0.1)
    assert repeated.next() == [], "little time was lost"


def test_what_was_refused_is_not_named_again_nor_what_is_below_it() -> None:
    repeated = RepeatedImports()
    repeated.refuse("lib.bad")
    names = ["lib", "lib.bad", "lib.bad.inner", "lib.bad_too", sys.__name__, "lib"]
    assert repeated.worth_trying(names) == ["lib", "lib.bad_too"]
    for _ in range(2):
        repeated.add(["lib.bad.inner", "lib"], 1.0)
    assert repeated.next() == ["lib"]


def test_it_does_not_answer_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preload, "_MOST_ANSWERS", 2)
    repeated = RepeatedImports()
    answers = []
    for number in range(4):
        for _ in range(2):
            repeated.add([f"lib{number}"], 2.0)
        answers.append(repeated.next())
    assert answers == [["lib0"], ["lib1"], [], []]
