"""The comparison of other packages' suites, plain and isolated: what counts as a difference."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from tools import foreign_suites, suite_archives
from tools.suite_archives import Suite, SuiteError


def _log(path: Path, *entries: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
    return path


def _phase(nodeid: str, when: str, outcome: str, **more: object) -> dict[str, object]:
    return {
        "$report_type": "TestReport",
        "nodeid": nodeid,
        "when": when,
        "outcome": outcome,
        **more,
    }


def test_outcomes_tell_all_phases_xfails_and_errors_of_collection(tmp_path: Path) -> None:
    log = _log(
        tmp_path / "log.jsonl",
        {"$report_type": "SessionStart"},
        {"$report_type": "CollectReport", "nodeid": "test_broken.py", "outcome": "failed"},
        {"$report_type": "CollectReport", "nodeid": "test_a.py", "outcome": "passed"},
        _phase("test_a.py::test", "setup", "passed"),
        _phase("test_a.py::test", "call", "skipped", wasxfail="why"),
        _phase("test_a.py::test", "teardown", "failed"),
        _phase("test_a.py::test[20:25:58 2026-11-22]", "call", "passed"),
    )
    assert foreign_suites.outcomes_of(log) == {
        "collecting test_broken.py": "failed",
        "test_a.py::test": "setup passed, call skipped xfail, teardown failed",
        "test_a.py::test[HH:MM:SS 2026-11-22]": "call passed",
    }


@pytest.mark.parametrize(
    ("isolated", "lines"),
    [
        ({"a": "passed", "b": "failed", "flaky": "passed"}, []),
        ({"a": "failed", "b": "failed"}, ["a: passed -> failed"]),
        ({"b": "failed"}, ["a: passed -> not there"]),
        ({"a": "passed", "b": "failed", "c": "passed"}, ["c: not there -> passed"]),
    ],
)
def test_a_test_that_is_missing_new_or_otherwise_differs(
    isolated: dict[str, str], lines: list[str]
) -> None:
    first = {"a": "passed", "b": "failed", "flaky": "passed"}
    second = {"a": "passed", "b": "failed", "flaky": "failed"}
    assert list(foreign_suites.compare((first, second), isolated).values()) == lines


def test_the_sources_of_the_package_are_not_beside_its_tests(tmp_path: Path) -> None:
    suite = Suite("more-things", "1.0")
    with pytest.raises(SuiteError, match=r"no source archive of more-things==1\.0"):
        suite_archives.unpack(tmp_path, suite)
    (tmp_path / "archives").mkdir()
    with tarfile.open(tmp_path / "archives" / "more_things-1.0.tar.gz", "w:gz") as archive:
        for name in ("src/more_things.py", "tests/test_it.py"):
            archive.addfile(tarfile.TarInfo(f"more_things-1.0/{name}"), io.BytesIO())
    root = suite_archives.unpack(tmp_path, suite)
    assert [path.name for path in root.rglob("*.py")] == ["test_it.py"]
    with pytest.raises(SuiteError, match="has no testing"):
        suite_archives.unpack(tmp_path, Suite("more-things", "1.0", ("testing",)))


def test_sources_beside_the_tests_are_removed_and_an_archive_made_by_hand_is_asked_for(
    tmp_path: Path,
) -> None:
    suite = Suite("engine", "1.0", sources=("engine",), tag="v1.0 of its repository")
    with pytest.raises(
        SuiteError, match=r"engine==1\.0 in .*, which is made by hand from v1\.0 of"
    ):
        suite_archives.unpack(tmp_path, suite)
    (tmp_path / "archives").mkdir()
    with tarfile.open(tmp_path / "archives" / "engine-1.0.tar.gz", "w:gz") as archive:
        for name in ("engine/__init__.py", "tests/test_it.py", "setup.py"):
            archive.addfile(tarfile.TarInfo(f"engine-1.0/{name}"), io.BytesIO())
    root = suite_archives.unpack(tmp_path, suite)
    assert sorted(path.name for path in root.rglob("*.py")) == ["setup.py", "test_it.py"]


@pytest.mark.slow
def test_a_suite_without_settings_does_not_get_those_of_a_folder_above(tmp_path: Path) -> None:
    settings = '[tool.pytest.ini_options]\naddopts = "--no-such-option"\n'
    (tmp_path / "pyproject.toml").write_text(settings)
    (tmp_path / "conftest.py").write_text("raise RuntimeError('of another project')\n")
    (tmp_path / "archives").mkdir()
    with tarfile.open(tmp_path / "archives" / "plain-1.0.tar.gz", "w:gz") as archive:
        for name in ("tests/test_it.py", "pyproject.toml"):
            archive.addfile(tarfile.TarInfo(f"plain-1.0/{name}"), io.BytesIO())
    suite = Suite("plain", "1.0")
    root = suite_archives.unpack(tmp_path, suite)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *suite.paths],
        cwd=root,
        env=foreign_suites.environment_of(suite),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, done.stdout + done.stderr


def test_a_part_of_a_suite_is_spread_over_it_and_leaves_out_what_cannot_be_named() -> None:
    names = [f"t{place}" for place in range(10)]
    first = dict.fromkeys([*names, "x[HH:MM:SS]", "collecting y"], "passed")
    second = first | {"t9": "failed"}
    assert foreign_suites.spread((first, second), 3) == ("t0", "t3", "t6")
    assert foreign_suites.spread((first, second), 100) == tuple(names[:9])


def test_the_counts_of_a_log_are_those_of_its_last_line(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("waited in 3.10s\n== 2 passed, 1 warning in 3.21s (0:00:03) ==\n[notice]\n")
    assert foreign_suites.summary_of(log) == "2 passed, 1 warning"
    log.write_text("killed\n")
    assert foreign_suites.summary_of(log) == ""


def test_the_table_has_the_latest_result_and_says_what_was_not_run() -> None:
    def result(suite: str, run: str, tests: int, *differences: str) -> dict[str, object]:
        return {"suite": suite, "run": run, "tests": tests, "differences": differences}

    table = foreign_suites.table_of(
        [
            result("b==2", "plain1", 40),
            result("b==2", "fork", 40, "x", "y"),
            result("a==1", "plain1", 90),
            result("a==1", "fork", 90, "x"),
            result("a==1", "spawn", 30),
            result("a==1", "fork", 90),
        ]
    )
    assert table.splitlines() == [
        "| suite | tests | fork | spawn |",
        "| --- | ---: | --- | --- |",
        "| a 1 | 90 | equal | equal (30) |",
        "| b 2 | 40 | 2 | not run |",
    ]


def test_a_run_is_compared_with_the_plain_ones_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = {"t::one": "call passed", "t::two": "call failed"}
    passes = plain | {"t::two": "call passed"}
    hasty = plain | {"t::one": "call failed"}
    outcomes = {"plain1": plain, "plain2": plain, "fork": passes, "auto": hasty}

    def run_suite(
        _folder: Path,
        suite: Suite,
        _root: Path,
        name: str,
        tests: tuple[str, ...] = (),
        again: str = "",
    ) -> dict[str, str]:
        if again:
            assert tests == (("t::two",) if name == "fork" else ("t::one",))
            return {test: outcomes[name][test] if name == "fork" else plain[test] for test in tests}
        if name == "spawn":
            raise SuiteError(f"{suite.name} by spawn ended with status 3")
        foreign_suites.log_of(tmp_path, suite, name, "log").write_text("1 passed in 0.10s\n")
        return outcomes[name]

    (tmp_path / "logs").mkdir()
    monkeypatch.setattr(foreign_suites, "SUITES", (Suite("tiny", "1"),))
    monkeypatch.setattr(foreign_suites, "unpack", lambda _folder, _suite: tmp_path)
    monkeypatch.setattr(foreign_suites, "run_suite", run_suite)
    folder = ("--folder", str(tmp_path), "--offline")
    assert foreign_suites.main([*folder, "--runs", "fork", "spawn", "auto"]) == 1
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["differences"] == [
        "tiny==1 by fork: t::two: call failed -> call passed",
        "tiny==1 by spawn: tiny by spawn ended with status 3",
        "tiny==1 by auto: t::one: call passed -> call failed; equal when run again",
    ]
    assert foreign_suites.main([*folder, "--table"]) == 0
    assert "| tiny 1 | 2 | 1 | 1 (0) | 1 |" in capsys.readouterr().out
    assert foreign_suites.main([*folder, "--runs", "fork", "--keep-plain"]) == 1


def test_a_call_that_was_ended_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []
    broken = {"spawn"}

    def run_suite(
        folder: Path,
        suite: Suite,
        _root: Path,
        name: str,
        tests: tuple[str, ...] = (),
        _again: str = "",
    ) -> dict[str, str]:
        ran.append(name)
        if name in broken:
            raise SuiteError("no")
        if name == "auto":
            raise KeyboardInterrupt
        report = foreign_suites.log_of(folder, suite, name, "jsonl")
        names = tests or ("t::one", "t::two")
        _log(report, *(_phase(test, "call", "passed") for test in names))
        foreign_suites.log_of(folder, suite, name, "log").write_text("2 passed in 0.10s\n")
        return foreign_suites.outcomes_of(report)

    (tmp_path / "logs").mkdir()
    monkeypatch.setattr(foreign_suites, "SUITES", (Suite("tiny", "1"),))
    monkeypatch.setattr(foreign_suites, "unpack", lambda _folder, _suite: tmp_path)
    monkeypatch.setattr(foreign_suites, "run_suite", run_suite)
    call = ["--folder", str(tmp_path), "--offline", "--resume", "--runs", "fork", "spawn", "auto"]
    with pytest.raises(KeyboardInterrupt):
        foreign_suites.main(call)
    assert ran == ["plain1", "plain2", "fork", "spawn", "auto"]
    with open(tmp_path / "results.jsonl", "a", encoding="utf-8") as file:
        file.write('{"suite": "tiny==1", "run": "au')  # killed while it wrote
    ran.clear()
    broken.clear()
    assert foreign_suites.main([*call[:-1], "forkserver"]) == 0
    assert ran == ["spawn", "forkserver"], "spawn could not be run before"
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["run"] for row in last["rows"]] == ["plain1", "fork", "spawn", "forkserver"]
    ran.clear()
    assert foreign_suites.main([*call[:-1], "forkserver", "--tests", "1"]) == 0
    assert ran == ["fork", "spawn", "forkserver"], "a part is another run than the whole"
    ran.clear()
    assert foreign_suites.main([*call[:-1], "--tests", "1"]) == 0
    assert ran == []
    assert foreign_suites.main([*call[:3], "--runs", "fork"]) == 0
    assert ran == ["plain1", "plain2", "fork"], "without --resume all of it runs"


def test_a_table_of_no_results_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert foreign_suites.main(["--table", "--folder", str(tmp_path)]) == 1
    assert capsys.readouterr().out == f"no results are kept in {tmp_path}\n"


def test_a_suite_that_is_not_known_is_refused_with_the_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        foreign_suites.main(["--only", "attr"])
    assert "no suite named attr; there are ['attrs', 'billiard'," in capsys.readouterr().err
    with pytest.raises(SystemExit):
        foreign_suites.main(["--torch", "--only", "attrs"])
    assert "no suite named attrs; there are ['accelerate'," in capsys.readouterr().err


def test_a_run_that_hangs_is_ended_with_what_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    readers: list[BinaryIO] = []

    def start(*arguments: Any, **keywords: Any) -> subprocess.Popen[bytes]:
        process = start_really(*arguments, **keywords)
        readers.append(open(fifo, "rb"))  # noqa: SIM115 - closed below
        assert readers[0].read(1) == b"x"
        return process

    start_really = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(foreign_suites, "LIMIT", 0.0)
    command = ["/bin/sh", "-c", f"exec 9>{fifo}; sleep 600 & printf x >&9; wait"]
    with pytest.raises(SuiteError, match=r"a was not done after 0 s: .*a\.log"):
        foreign_suites.call_pytest(command, tmp_path, dict(os.environ), tmp_path / "a.log")
    assert readers[0].read() == b"", "all that could write is gone"
    readers[0].close()
