"""``python -m pytest_cudafork merge``: what it prints, changes and answers."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from pytest_cudafork.baseline.entries import CheckBaseline
from pytest_cudafork.check.baseline_result import BaselineResult, Seen
from pytest_cudafork.report.merge_command import main
from tests.unit.report.test_merge import A, B, C, ledger


@pytest.fixture
def jobs(tmp_path: Path) -> list[str]:
    """Two jobs: A is accepted in both, B is new in the second, C is quiet in the first."""
    one = BaselineResult((Seen(A, ["start"], 1),), quiet=(C,))
    two = BaselineResult((Seen(A, ["start"], 1),), (Seen(B, ["b.py::t"], 1),))
    return [ledger(tmp_path / "one", one), ledger(tmp_path / "two", two)]


def test_what_is_not_accepted_is_an_error_with_its_job(
    jobs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(jobs) == 1
    out = capsys.readouterr().out
    assert f"{jobs[0]}: exit status 1; touches: 1 (" in out
    assert f"ERROR: not accepted: {B.words} (1 time: b.py::t)\n    in {jobs[1]}\n" in out
    assert f"gone from the tests (it was not seen any more): {C.words}" in out
    assert main(jobs[:1]) == 0


def test_a_joined_ledger_comes_to_the_same_as_its_jobs(
    jobs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = f"--output={tmp_path / 'joined'}"
    assert main([jobs[1], jobs[0], output]) == 1  # what is not accepted is in the first
    told = capsys.readouterr().out
    for _ in range(2):
        assert main([str(tmp_path / "joined"), output]) == 1
        assert capsys.readouterr().out == told


def test_the_baseline_is_changed_as_a_session_of_the_whole_suite_would(
    jobs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "known.toml"
    CheckBaseline({A: "start", C: "start"}).write(path)
    named = f"--baseline={path}"
    assert main([*jobs, named, "--update=shrink"]) == 1
    assert CheckBaseline.read(path, "").entries == {A: "start"}
    path.unlink()
    assert main([*jobs, named, "--update", f"--output={tmp_path / 'joined'}"]) == 0
    out = capsys.readouterr().out
    assert f"new: {B.words}" in out
    assert "2 now, 2 added, 0 removed" in out
    assert CheckBaseline.read(path, "").entries == {A: "start", B: "b.py::t"}
    assert (tmp_path / "joined").exists()
    assert main([*jobs, named]) == 0  # all is accepted now


def test_a_baseline_is_not_changed_while_a_job_is_missing(
    jobs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "known.toml"
    killed = ledger(tmp_path / "killed", None)
    assert main([*jobs, killed, f"--baseline={path}", "--update"]) == 1
    out = capsys.readouterr().out
    assert f"{killed}: no end; touches: 1" in out
    assert f"ERROR: {killed}: its session did not come to its end" in out
    assert "ERROR: the baseline was not changed" in out
    assert not path.exists()


def test_a_baseline_is_not_changed_where_the_joined_ledger_cannot_be_written(
    tmp_path: Path, jobs: list[str]
) -> None:
    baseline = tmp_path / "accepted.toml"
    with pytest.raises(SystemExit) as ended:
        main(
            [*jobs, f"--baseline={baseline}", "--update", f"--output={tmp_path / 'no' / 'joined'}"]
        )
    assert ended.value.code == 2
    assert not baseline.exists()


def test_a_baseline_is_spoken_of_where_there_is_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clean = ledger(tmp_path / "clean", BaselineResult())
    assert main([clean]) == 0
    assert "\nbaseline: " not in capsys.readouterr().out
    path = tmp_path / "known.toml"
    CheckBaseline({A: "start"}).write(path)
    assert main([clean, f"--baseline={path}"]) == 0
    assert "\nbaseline: nothing of it was seen\n" in capsys.readouterr().out
    accepting = ledger(tmp_path / "accepting", BaselineResult((Seen(A, ["start"], 1),)))
    assert main([accepting]) == 0, "that of the job"
    assert "\nbaseline: accepted 1 fork, " in capsys.readouterr().out


def test_an_error_without_a_culprit_stays_one(tmp_path: Path) -> None:
    one = ledger(tmp_path / "one", BaselineResult(unknown=1))
    assert main([one, f"--baseline={tmp_path / 'known.toml'}", "--update"]) == 1


def test_names_that_standard_output_cannot_hold_do_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepted = BaselineResult((Seen(A, ["start"], 1),))
    names = [os.fsdecode(b"\xff"), "\u00e9", "a\x1b[31m"]
    jobs = [ledger(tmp_path / name, accepted) for name in names]
    stdout = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr("sys.stdout", stdout)
    assert main(jobs) == 0
    stdout.seek(0)
    told = stdout.read()
    for shown in ("\\udcff", "?", "a\\x1b[31m"):
        assert f"{tmp_path}/{shown}: exit status 1; touches: 1" in told


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "required: LEDGER"),
        (["nowhere"], "nowhere: cannot be read"),
        (["one", "--update"], "name it with --baseline=FILE"),
        (["one", "--baseline=none.toml"], "there is no such baseline. Create it with --update"),
        (["one", "--baseline=one"], "is not TOML"),
        (["one", "--baseline=b.toml", "--update=some"], "invalid choice"),
        (["one", "--output=no/such/folder"], "No such file"),
    ],
)
def test_wrong_arguments_are_told(
    args: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    ledger(tmp_path / "one", BaselineResult())
    with pytest.raises(SystemExit) as ended:
        main(args)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
