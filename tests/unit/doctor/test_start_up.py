"""What runs at the start of every process, and the start method in force."""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_cudafork.doctor import start_up
from pytest_cudafork.doctor.children import Answer
from pytest_cudafork.doctor.finding import Finding, Level
from pytest_cudafork.doctor.start_up import examine_method, examine_start_up
from pytest_cudafork.programs.deeds import StartMethodInForce
from tests.support.imports import TOUCH

SITE_CUSTOMIZE = f"""\
import multiprocessing, threading
{TOUCH}
multiprocessing.set_start_method("spawn")
threading.Thread(target=threading.Event().wait, daemon=True).start()
print("a word on stdout")
"""


@pytest.fixture(autouse=True)
def _no_word_of_a_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_WORKER_MULTIPROC_METHOD", raising=False)
    monkeypatch.delenv("MULTIPROCESSING_START_METHOD", raising=False)


def about(subject: str, findings: list[Finding]) -> list[Finding]:
    return [each for each in findings if each.subject == subject]


@pytest.mark.slow
def test_what_sitecustomize_does_is_told_with_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "sitecustomize.py"
    path.write_text(SITE_CUSTOMIZE)
    inherited = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(tmp_path), inherited])))
    findings, facts = examine_start_up()
    texts = [each.text for each in about("start-up", findings)]
    touch, thread = (each for each in texts if "sitecustomize.py" in each)
    assert "initializes CUDA before its first line" in touch
    assert "sitecustomize.py:2" in touch
    assert thread.startswith(f"{path} starts a thread: ")
    assert about("start-up", findings)[0].level is Level.PROBLEM
    (method,) = about("start method", findings)
    assert method.text == f"spawn, set by {path}"
    (file,) = [each for each in facts["files"] if each["file"] == str(path)]
    assert file["start_method"] == "spawn"
    assert len(file["threads"]) == 1


@pytest.mark.slow
def test_a_sitecustomize_that_fails_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise ValueError('no such setting')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (found,) = [each for each in examine_start_up()[0] if "fails in every process" in each.text]
    assert found.level is Level.WARNING
    assert "Error in sitecustomize" in found.text


@pytest.mark.slow
def test_an_environment_as_it_is_tests_run_in_touches_nothing() -> None:
    findings, facts = examine_start_up()
    assert not [each for each in findings if each.level is Level.PROBLEM], findings
    assert facts["files"]
    (method,) = about("start method", findings)
    default = multiprocessing.get_all_start_methods()[0]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert method.text == f"{default}, the default of Python {version} on linux"


def report(**file: Any) -> list[dict[str, Any]]:
    empty = {"file": "a.pth", "threads": [], "libraries": [], "modules": [], "start_method": ""}
    return [{**empty, **file}]


@pytest.mark.parametrize(
    ("file", "level", "words"),
    [
        ({}, Level.OK, "1 file is read"),
        ({"threads": ["a", "b"]}, Level.WARNING, "a.pth starts 2 threads: a, b"),
        ({"libraries": ["/x/libcuda.so.1"]}, Level.WARNING, "loads libcuda.so.1"),
        ({"libraries": ["/x/libz.so.1"]}, Level.OK, "none touches"),
        ({"modules": ["json", "torch"]}, Level.NOTE, "a.pth imports torch"),
    ],
)
def test_what_a_file_leaves(
    file: dict[str, Any], level: Level, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_up, "ask", lambda *args, **kw: Answer(report(**file), None))
    ((found,), _) = examine_start_up()
    assert found.level is level
    assert words in found.text


def test_what_could_not_be_seen_is_not_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_up, "ask", lambda *args, **kw: Answer(None, None, "it died"))
    (found,), facts = examine_start_up()
    assert found.level is Level.WARNING
    assert "could not be seen: it died" in found.text
    assert facts == {}


@pytest.mark.parametrize(
    ("method", "variables", "expected"),
    [
        ("fork", {}, [("start method", Level.NOTE)]),
        ("forkserver", {}, [("start method", Level.OK)]),
        (
            "fork",
            {"MULTIPROCESSING_START_METHOD": "spawn", "VLLM_WORKER_MULTIPROC_METHOD": "spawn"},
            [
                ("start method", Level.NOTE),
                ("MULTIPROCESSING_START_METHOD", Level.WARNING),
                ("VLLM_WORKER_MULTIPROC_METHOD", Level.NOTE),
            ],
        ),
        ("spawn", {"MULTIPROCESSING_START_METHOD": "spawn"}, [("start method", Level.OK)]),
    ],
)
def test_the_method_in_force_and_who_asks_for_another(
    method: str,
    variables: dict[str, str],
    expected: list[tuple[str, Level]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    found = examine_method(StartMethodInForce(method, "why"))
    assert [(each.subject, each.level) for each in found] == expected
    assert found[0].text == f"{method}, why"


VLLM, COMMON = "VLLM_WORKER_MULTIPROC_METHOD", "MULTIPROCESSING_START_METHOD"


@pytest.mark.parametrize(
    ("name", "given", "advice"),
    [
        (COMMON, "spwan", "did you mean spawn? set {name}=spawn"),
        (COMMON, " Forkserver", "did you mean forkserver? set {name}=forkserver"),
        (COMMON, "threads", "set it to one of these, or take {name} out"),
        (VLLM, "spwan", "did you mean spawn? set {name}=spawn"),
        (VLLM, "threads", "set it to one of these, or take {name} out"),
    ],
)
def test_a_method_that_there_is_not_is_no_advice(
    name: str, given: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, given)
    _, found = examine_method(StartMethodInForce("fork", "why"))
    assert (found.subject, found.level) == (name, Level.WARNING)
    assert f"is set to {given!r}, which is not one of " in found.text
    assert ("(fork, spawn)" if name == VLLM else "(fork, spawn, forkserver)") in found.text
    assert found.fix.startswith(advice.format(name=name))
    assert given not in found.fix
    assert repr(given) not in found.consequence


def test_vllm_does_not_list_the_fork_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VLLM, "forkserver")
    _, found = examine_method(StartMethodInForce("fork", "why"))
    assert (found.subject, found.level) == (VLLM, Level.WARNING)
    assert "does not list (fork, spawn)" in found.text
    assert f"set {VLLM}=spawn" in found.fix
