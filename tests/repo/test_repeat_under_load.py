"""Parts of the suite are run again and again: a failure among them is found, told and kept."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from tools import repeat_under_load
from tools.checkout import PROJECT
from tools.kept_rows import add_row
from tools.repeat_under_load import Failure, Run

FLAKY = """
import pathlib
import pytest

runs = pathlib.Path(__file__).with_name("runs")

def test_right():
    pass

def test_flaky():
    runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
    assert runs.read_text() != "xx", "the second run has lost the race"
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a checkout of one flaky test, run by this interpreter."""
    project = tmp_path / "project"
    (project / "tests").mkdir(parents=True)
    (project / "tests" / "test_it.py").write_text(FLAKY)
    (project / "pytest.ini").write_text("[pytest]\n")

    def prepare(folder: Path, _project: Path) -> tuple[Path, str]:
        folder.mkdir(exist_ok=True)
        if not (folder / "checkout").exists():
            (folder / "checkout").symlink_to(project)
        return Path(sys.executable), "abc123"

    monkeypatch.setattr(repeat_under_load, "PROJECT", project)
    monkeypatch.setattr(repeat_under_load, "prepare", prepare)
    return project


@pytest.mark.slow
def test_a_test_that_fails_in_one_of_three_runs_is_told_and_its_output_kept(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "kept"
    options = ["--workers", "1", "--busy", "1", "--folder", str(folder)]
    assert repeat_under_load.main(["tests", "--times", "1", *options]) == 0
    assert repeat_under_load.main(["tests", "--times", "3", *options]) == 1
    assert len((project / "tests" / "runs").read_text()) == 3, "the first run was not repeated"
    output = capsys.readouterr().out.splitlines()
    assert "| tests | 3 | 2 | 1 |" in output
    assert "1 times: tests.test_it::test_flaky" in output
    rows = json.loads(output[-1])["rows"]
    assert [(row["number"], row["tests"], len(row["failures"])) for row in rows] == [
        (1, 2, 0),
        (2, 2, 1),
        (3, 2, 0),
    ]
    assert {row["revision"] for row in rows} == {"abc123"}
    assert "the second run has lost the race" in rows[1]["failures"][0]["text"]
    assert [path.name for path in (folder / "logs").iterdir()] == ["tests-2.log"]


@pytest.mark.slow
def test_a_run_that_hangs_or_dies_is_a_failure_with_its_output(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "tests" / "test_it.py").write_text(
        "import time\ndef test_a(): print('at it', flush=True); time.sleep(600)\n"
    )
    (project / "tests" / "test_end.py").write_text("import os\ndef test_b(): os._exit(7)\n")
    options = ["--times", "1", "--workers", "1", "--busy", "0", "--folder", str(tmp_path / "kept")]
    parts = ["tests/test_it.py", "tests/test_end.py"]
    assert repeat_under_load.main([*parts, *options, "--limit", "4", "--", "-s"]) == 1
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    hung, died = (row["failures"][0] for row in rows)
    assert hung["test"] == "tests/test_it.py was ended at its limit"
    assert "at it" in hung["text"]
    assert 'test_it.py", line 2 in test_a' in hung["text"], "the stacks of what hung"
    assert died["test"] == "tests/test_end.py ended with status 7"


@pytest.mark.slow
def test_a_part_without_tests_is_no_run_that_passed(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--workers", "1", "--busy", "0", "--folder", str(tmp_path / "kept")]
    assert repeat_under_load.main(["tests", *options, "--", "-k", "nothing_of_that_name"]) == 2
    assert "tests: pytest ended with status 5:" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        repeat_under_load.main(["tests", "test/sessions", *options])
    assert "there is no test/sessions in the checkout" in capsys.readouterr().err


def test_a_run_is_kept_behind_a_line_that_was_cut_short(tmp_path: Path) -> None:
    kept = tmp_path / "runs.jsonl"
    assert repeat_under_load.read_runs(kept) == []
    run = Run("tests", 1, "abc", 2, 1.0, 3.0, [Failure("a::b", "no")])
    add_row(kept, asdict(run))
    kept.write_text(kept.read_text() + '{"part": "tests", "num')
    add_row(kept, asdict(run))
    assert repeat_under_load.read_runs(kept) == [run, run]


def test_busy_processes_end_with_the_one_that_was_killed() -> None:
    code = (
        "import time\n"
        "from tools.repeat_under_load import busy_processes\n"
        "with busy_processes(1):\n"
        "    print('busy', flush=True); time.sleep(600)\n"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"busy\n"
        process.kill()
        assert process.stdout.read() == b"", "all that had the other end is gone"
