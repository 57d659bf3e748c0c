"""``python -m pytest_cudafork doctor``: its output and status, and that it touches nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_cudafork import run_script
from pytest_cudafork.doctor import command_line, finding, gpus
from pytest_cudafork.doctor.command_line import main
from pytest_cudafork.doctor.finding import Finding
from pytest_cudafork.doctor.gpus import Machine
from pytest_cudafork.doctor.torch_build import Torch
from tests.support.documents import validated
from tests.support.imports import TOUCH

FINE = finding.ok("torch", "2.13.0")
NOTE = finding.note("A", "b", "c")
WARNING = finding.warning("B", "is 1", "verdicts differ", "unset it")
PROBLEM = finding.problem("C", "is broken", "nothing works", "mend it")


def found(monkeypatch: pytest.MonkeyPatch, *findings: Finding) -> None:
    monkeypatch.setattr(command_line, "examine", lambda imports: ([*findings], {"a": [1]}))


@pytest.mark.parametrize(
    ("findings", "args", "status", "last"),
    [
        ([FINE], [], 0, "nothing to tell"),
        ([FINE, NOTE, NOTE], ["--strict"], 0, "2 notes"),
        ([WARNING], [], 0, "1 warning"),
        ([WARNING, NOTE], ["--strict"], 1, "1 warning, 1 note"),
        ([PROBLEM, WARNING], [], 1, "1 problem, 1 warning"),
    ],
)
def test_the_exit_status_tells(
    findings: list[Finding],
    args: list[str],
    status: int,
    last: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found(monkeypatch, *findings)
    assert main(args) == status
    assert capsys.readouterr().out.splitlines()[-1] == last
    assert main([*args, "--json"]) == status
    data = validated(json.loads(capsys.readouterr().out), "doctor")
    assert data["status"] == status
    assert data["findings"] == [each.to_plain() for each in findings]
    assert data["facts"] == {"a": [1]}


def test_wrong_arguments_end_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--quiet"])
    assert ended.value.code == 2
    assert "unrecognized arguments: --quiet" in capsys.readouterr().err


def test_another_system_is_said_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    assert "Linux only" in capsys.readouterr().err


def test_each_part_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    torch, machine = Torch("t", "2.13.0"), Machine(False)
    asked: list[str] = []

    def part(name: str, answer: Any) -> None:
        def call(*args: object, **kw: object) -> Any:
            asked.append(name)
            return answer

        monkeypatch.setattr(command_line, name, call)

    monkeypatch.setattr(gpus, "look", lambda: machine)
    part("read_torch", (torch, [PROBLEM]))
    part("examine_start_up", ([NOTE], {}))
    part("examine_torch", [FINE])
    part("examine_import", ([WARNING], {}))
    part("examine_triton", [])
    part("examine_flash_attention", ([NOTE], {}))
    part("examine_variables", [WARNING])
    findings, facts = command_line.examine(imports=True)
    assert [each.subject for each in findings] == ["A", "driver", "C", "torch", "B", "A", "B"]
    assert len(asked) == len(set(asked)) == 7
    assert json.loads(json.dumps(facts))["torch"]["version"] == "2.13.0"
    asked.clear()
    command_line.examine(imports=False)
    assert "examine_import" not in asked


@pytest.mark.slow
def test_the_doctor_touches_nothing_where_there_are_gpus_and_finds_who_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fa3_fwd_interface.py").write_text(TOUCH)
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    build = "__version__ = '2.11.0+cu140'\ncuda = '14.0'\n"
    (tmp_path / "torch" / "version.py").write_text(build)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    result = run_script(
        "pytest_cudafork",
        *("doctor", "--json"),
        device="phantom:sm_90x2",
        cwd=tmp_path,
        method=None,
        timeout=300,
        allow_findings=True,
        env={"PYTHONPATH": str(tmp_path)},
    )
    assert result.touches == (), "of the doctor's own process and what it forks"
    assert result.findings == ()
    assert {fork.verdict for fork in result.forks} <= {"clean"}
    data = validated(json.loads(result.stdout), "doctor")
    assert [each["capability"] for each in data["facts"]["machine"]["gpus"]] == [[9, 0], [9, 0]]
    (flash,) = [each for each in data["findings"] if each["subject"] == "FlashAttention-3"]
    assert flash["level"] == "warning"
    assert "fa3_fwd_interface.py:1: module body, runs at import" in flash["text"]
    (torch,) = [each for each in data["findings"] if each["level"] == "problem"]
    assert torch["text"].startswith("it is built for CUDA 14.0; driver ")
    assert (data["status"], result.exitcode) == (1, 1)
