"""The fuzzer of sessions: what it draws, what it takes for wrong, and that it sees what is."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fuzz import sessions
from tests.fuzz.sessions import KINDS, Ended, Session, draw, judge, run

ONE = Session(1, {"test_0.py": "def test_a(): pass\n"}, {"test_0::test_a": "passed"}, ("-q",))
WELL = Ended(0, "1 passed in 0.01s", {"test_0::test_a": "passed"})


def test_a_seed_makes_the_same_session_again_and_all_kinds_are_drawn() -> None:
    assert draw(7) == draw(7)
    drawn = [draw(seed) for seed in range(300)]
    names = {name.split("_", 2)[2] for one in drawn for name in one.outcomes}
    assert {name.split("_", 1)[1] for name in names} == set(KINDS)
    assert {one.ends_by[0] for one in drawn if one.ends_by is not None} >= {signal.SIGINT}
    assert any(one.stops_early for one in drawn)
    for one in drawn:
        for text in one.files.values():
            compile(text, "drawn", "exec")


def test_what_ends_well_is_not_wrong() -> None:
    assert judge(ONE, WELL) == []
    assert judge(replace(ONE, options=("-x",)), replace(WELL, status=1)) == []
    hit = replace(ONE, ends_by=(signal.SIGKILL, 1.0))
    assert judge(hit, Ended(-9, "", {}, was_hit=True)) == []


@pytest.mark.parametrize(
    ("ended", "wrong"),
    [
        (replace(WELL, status=None), ["it hangs"]),
        (replace(WELL, status=3), ["it ended with 3"]),
        (replace(WELL, left=("sleep 600",)), ["processes are left: sleep 600"]),
        (replace(WELL, output="INTERNALERROR> no"), ["an internal error"]),
        (replace(WELL, outcomes={}), ["it wrote no report"]),
        (replace(WELL, outcomes={"test_0::b": "passed"}), [
            "test_0::test_a was lost", "test_0::b: passed, not no test",
        ]),
        (replace(WELL, outcomes={"test_0::test_a": "failed"}), [
            "test_0::test_a: failed, not passed",
        ]),
    ],
)  # fmt: skip
def test_what_does_not_is(ended: Ended, wrong: list[str]) -> None:
    assert judge(ONE, ended) == wrong


RIGHT = Session(
    1,
    {"test_0.py": "def test_a(): pass\ndef test_b(): assert 0\n"},
    {"test_0::test_a": "passed", "test_0::test_b": "failed"},
    ("--cuda-fork-isolate=fork",),
)


def test_a_session_that_goes_well_is_not_wrong(tmp_path: Path) -> None:
    assert judge(RIGHT, run(RIGHT, tmp_path, 60.0)) == []


@pytest.mark.parametrize(
    ("planted", "told"),
    [
        ("import os\ndef pytest_sessionfinish(): os._exit(7)\n", ["it ended with 7"]),
        ("def pytest_collection_modifyitems(items): del items[0]\n", ["test_0::test_a was lost"]),
        ("def pytest_runtest_logstart(): 1 / 0\n", ["an internal error", "it ended with 3"]),
    ],
)
def test_a_planted_fault_is_seen(planted: str, told: list[str], tmp_path: Path) -> None:
    wrong = replace(RIGHT, files={**RIGHT.files, "conftest.py": planted})
    assert judge(wrong, run(wrong, tmp_path, 60.0))[: len(told)] == told


def test_what_is_left_is_told_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "LEFT_SECONDS", 0.2)
    text = "import subprocess\ndef test_a(): subprocess.Popen(['sleep', '600'])\n"
    left = run(replace(ONE, files={"test_0.py": text}), tmp_path, 60.0)  # it is not isolated
    assert judge(ONE, left) == ["processes are left: sleep 600"]


def test_one_that_hangs_is_ended(tmp_path: Path) -> None:
    text = "import time\ntime.sleep(600)\n"
    ended = run(replace(ONE, files={"test_0.py": text}), tmp_path, 2.0)
    assert judge(ONE, ended) == ["it hangs"]
    assert "-m pytest" in ended.left[0]
