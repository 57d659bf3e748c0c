"""The arguments of ``run``: ours end where the program begins."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_cudafork.programs import run_options
from pytest_cudafork.programs.run_options import RunOptions, UsageError, parse


def test_everything_from_the_program_on_is_the_programs() -> None:
    assert parse(["post.py", "--json", "-h"]) == RunOptions(command=("post.py", "--json", "-h"))
    assert parse(["-m", "pkg.tool", "--fail"]).command == ("-m", "pkg.tool", "--fail")
    assert parse(["--", "sh", "-c", "x"]) == RunOptions(command=("sh", "-c", "x"), program=True)
    assert parse(["-"]).command == ("-",)  # the interpreter reads the script from its input


def test_options_before_it_are_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = parse(
        ["--report", "r", "--json", "--fail", "--guard", "--allow=a.b, c", "--device=none",
         "--ledger=l", "post.py"]
    )  # fmt: skip
    assert found == RunOptions(
        command=("post.py",),
        report=f"{tmp_path}/r",
        json=True,
        fail=True,
        guard=True,
        allow=("a.b", "c"),
        device="none",
        ledger=f"{tmp_path}/l",
    )
    assert parse(["--captures", "post.py"]).captures == "check"
    assert parse(["--captures=all", "post.py"]).captures == "all"
    assert parse(["--help"]).help
    assert parse(["-h", "--nonsense"]).help


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "there is no program to run"),
        (["--"], "there is no program after --"),
        (["-m"], "there is no module after -m"),
        (["--fail"], "there is no program to run"),
        (["--verbose", "x.py"], "there is no option '--verbose'"),
        (["--fail=yes", "x.py"], "there is no option '--fail=yes'"),
        (["-X", "dev", "x.py"], "-- python -X dev"),
        (["-c", "pass"], "name a script, or run the interpreter itself: -- python -c"),
        (["--report"], "--report needs a value"),
        (["--report=", "x.py"], "--report: the value is empty"),
        (["--report", "--json", "x.py"], "if it is the value, write --report=--json"),
        (["--report", "serve.py", "x.py"], "as in --report=FILE serve.py"),
        (["--report", "/no/report", "x.py"], "--report: there is no folder '/no'"),
        (["--report=r", "--ledger=r", "x.py"], "is the file of --ledger, too"),
        (["--json", "x.py"], "name the file"),
        (["--captures=audit", "x.py"], "--captures=audit: say one of check, all"),
        (["--allow", "a", "x.py"], "add --guard"),
        (["--guard", "--allow", "a-b", "x.py"], "'a-b' is not a module name"),
    ],
)
def test_what_is_wrong_is_said(words: list[str], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(words)
    assert said in str(caught.value)


@pytest.mark.parametrize("option", ["--report", "--ledger"])
def test_the_working_directory_may_be_gone(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, gone = str(tmp_path / "file.txt"), tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    options = parse([option, file, "a.py"])
    assert file in (options.report, options.ledger)
    words = f"{option}: 'file.txt' is in the working directory, which has been removed"
    with pytest.raises(UsageError, match=words):
        parse([option, "file.txt", "a.py"])


def test_the_interpreters_own_options_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["__main__.py", "run", "x.py", "-u"])
    start = ["python", "-X", "dev", "-u"]
    monkeypatch.setattr(sys, "orig_argv", [*start, "-m", "pytest_cudafork", "run", "x.py", "-u"])
    assert run_options.interpreter() == [sys.executable, "-X", "dev", "-u"]
    monkeypatch.setattr(sys, "orig_argv", ["python", "other.py", "run", "x.py", "-u"])
    assert run_options.interpreter()[0] == sys.executable  # as subprocess would start it


def test_the_help_names_every_option() -> None:
    for name in (*run_options._FLAGS, *run_options._VALUES):
        assert f"--{name}" in run_options.HELP
