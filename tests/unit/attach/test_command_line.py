"""``python -m pytest_cudafork attach PID``: what it prints and its exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_cudafork.attach import command_line
from pytest_cudafork.attach.command_line import lines_of, main
from pytest_cudafork.attach.examine import Examined, Member
from pytest_cudafork.attach.verdict import State
from pytest_cudafork.observe.driver.probe import Verdict
from pytest_cudafork.process.native_stacks import PythonStack
from tests.support.attached import running
from tests.support.documents import validated
from tests.unit.attach.test_verdict import target


def test_a_server_with_a_poisoned_child_ends_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with running(tmp_path, "touch", "fork", watched=True) as server:
        pid, child = server.pids
        assert main([str(pid), "--no-stacks"]) == 1
        text = capsys.readouterr().out
        assert main([str(pid), "--no-stacks", "--json"]) == 1
        data = validated(json.loads(capsys.readouterr().out), "attach")
    lines = text.splitlines()
    assert lines[0].startswith(f"process {pid}: ")
    assert "  CUDA: initialized: its ledger has the touch" in lines
    assert "    server.py:8: in touch" in lines
    at = lines.index("  children that can never use CUDA:")
    assert lines[at + 1].startswith(f"    process {child}: ")
    assert "      forked by server.py:20 in <module>" in text.replace("\n        >", "")
    assert "      initialized at server.py:8: in touch" in lines
    assert [each["pid"] for each in data["descendants"]] == [child]


def test_a_program_without_python_and_cuda_ends_with_0(
    capsys: pytest.CaptureFixture[str],
) -> None:
    process = subprocess.Popen(["sleep", "900"])
    try:
        assert main([str(process.pid)]) == 0
    finally:
        process.kill()
        process.wait()
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("  Python: none: it runs /")
    assert "  CUDA: clean: no driver is loaded" in lines
    assert any(line.startswith("  no Python stacks: it runs no Python: /") for line in lines)
    assert any(line.startswith(f"  thread {process.pid} (") for line in lines)
    assert lines[-1] == "  children that can never use CUDA: none (it has none)"


def test_a_process_that_is_gone_ends_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    with pytest.raises(SystemExit) as ended:
        main([str(process.pid)])
    assert ended.value.code == 2
    assert f"error: there is no process {process.pid}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "required: PID"),
        (["zero"], "'zero' is not the number of a process"),
        (["0"], "is not the number"),
        (["99999999999"], "is not the number"),
        (["-5"], "-5"),
        ([str(os.getpid()), "--ledger=/no/such/file"], "No such file"),
        ([str(os.getpid()), "--ledger=/etc/hostname"], "is no ledger of pytest-cudafork"),
    ],
)
def test_wrong_arguments_end_with_2(
    args: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(args)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_another_system_is_said_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(SystemExit):
        main(["1"])
    assert "Linux only" in capsys.readouterr().err


def examined(state: State, *below: State, **fields: object) -> Examined:
    members = [Member(target(30 + n), each) for n, each in enumerate(below)]
    base = Examined(Member(target(), state), tuple(members), (), "", (), "", "")
    return base._replace(**fields)  # type: ignore[arg-type]


def test_threads_are_told_with_their_stacks_and_their_states() -> None:
    frames = tuple(f"a.py:{n} in f" for n in range(20))
    found = examined(
        State(Verdict.CLEAN, "why"),
        stacks=(PythonStack(7, "main", frames), PythonStack(8, "", ("\x1b.py:1 in g",))),
        threads="thread 7 ('python'): sleeping in futex_wait",
    )
    lines = list(lines_of(found))
    at = lines.index("  thread 7 (main): sleeping in futex_wait")
    assert lines[at + 1] == "    a.py:0 in f"
    assert lines[at + 1 + command_line._MOST_FRAMES] == "    ... and 8 more"
    assert lines[-3:-1] == ["  thread 8", "    \\x1b.py:1 in g"]


def test_what_is_not_known_of_others_is_told() -> None:
    unknown = State(Verdict.NOT_OBSERVABLE, "inherited, or not")
    found = examined(
        State(Verdict.INITIALIZED, "why"),
        State(Verdict.POISONED, "forked too late"),
        unknown,
        unreadable=("process 9 may not be read",),
    )
    assert list(lines_of(found))[-6:] == [
        "  children that can never use CUDA:",
        "    process 30: python a.py",
        "      forked too late",
        "  1 more descend from it",
        "  not known of process 31: inherited, or not",
        "  not known: process 9 may not be read",
    ]


def test_another_python_is_said_to_be_one() -> None:
    (line,) = (each for each in lines_of(examined(State(Verdict.CLEAN, ""))) if "Python:" in each)
    assert line == f"  Python: /py (another one than this, {os.path.realpath(sys.executable)})"
