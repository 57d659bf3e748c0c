"""Tests of the audit's processes as their parent sees them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from pytest_cudafork.compat import unpatched
from pytest_cudafork.imports.audit import process
from pytest_cudafork.imports.audit.process import AuditProcess, FreshImport, Message, unwatched
from pytest_cudafork.imports.values.settings import AuditSettings
from pytest_cudafork.imports.worker import supervisor
from tests.support.descriptors import descriptors_left
from tests.support.imports import TOUCH, write_package
from tests.support.isolation import is_gone
from tests.support.signs import wait_until


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    files = {
        "__init__": "",
        "a": "print('hello')",
        "hot": TOUCH,
        "hangs": f"import time\nopen({str(tmp_path / 'hangs')!r}, 'w').close()\ntime.sleep(600)",
    }
    write_package(tmp_path, "pkg", files)
    return tmp_path


def answer_about(audit: AuditProcess, module: str) -> Message:
    """Read until a module is told of."""
    while True:
        message = audit.read(60.0)
        assert message is not None
        if message.get("module") == module:
            return message


@pytest.mark.usefixtures("folder")
def test_a_result_for_which_no_descriptor_is_left_is_none() -> None:
    with contextlib.closing(AuditProcess(AuditSettings(timeout=100.0))) as audit:
        audit.say({"import": ["pkg.a"]})
        while not audit.started:
            audit.read(60.0)
        with descriptors_left(0):
            answer = answer_about(audit, "pkg.a")
    assert answer["told"] is None
    assert answer["output"] == "its result was not taken: this process has no file descriptor left"


@pytest.mark.usefixtures("folder")
def test_a_server_imports_what_it_is_asked_to(folder: Path) -> None:
    with contextlib.closing(AuditProcess(AuditSettings(timeout=100.0))) as audit:
        audit.say({"preload": ["colorsys"]})
        audit.say({"import": ["pkg.a", "pkg.hot", "pkg.dropped"], "drop": ["pkg.dropped"]})
        answer = answer_about(audit, "pkg.a")
        assert audit.pid > 0
        assert audit.error == ""
        assert (answer["status"], answer["output"]) == (0, "hello")
        assert answer["told"]["kind"] == "imported"
        assert audit.touches_of(answer["pid"]) == []
        answer = answer_about(audit, "pkg.hot")
        assert len(audit.touches_of(answer["pid"])) == 1
        assert audit.touches_of(answer["pid"]) == []
        assert audit.read(0.05) is None
        assert not audit.is_gone
        audit.kill()
        assert audit.read(60.0) is None
        assert audit.is_gone
        assert audit.how_it_ended().startswith("was killed by SIGKILL")


@pytest.mark.usefixtures("folder")
def test_a_fresh_interpreter_imports_one_module() -> None:
    with contextlib.closing(FreshImport(AuditSettings(), "pkg.hot")) as fresh:
        answer = fresh.answer(60.0)
        assert (answer["module"], answer["status"], answer["timed_out"]) == ("pkg.hot", 0, False)
        assert answer["told"]["state"] == "initialized"
        assert len(fresh.touches_of(answer["pid"])) == 1


def test_an_import_that_takes_too_long_is_ended_with_its_stacks(folder: Path) -> None:
    with contextlib.closing(FreshImport(AuditSettings(), "pkg.hangs")) as fresh:
        wait_until((folder / "hangs").exists, "the import")
        answer = fresh.answer(0.1)
        assert answer["timed_out"]
        assert answer["told"] is None
        assert "hangs.py" in answer["stacks"]


def test_a_process_that_cannot_watch_says_why() -> None:
    with contextlib.closing(FreshImport(AuditSettings(without="sys"), "json")) as fresh:
        fresh.answer(60.0)
        assert "sys cannot be hidden" in fresh.error


@pytest.mark.usefixtures("folder")
def test_an_interpreter_that_has_not_begun_ends_with_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note, startup = tmp_path / "note", tmp_path / "startup"
    startup.mkdir()
    (startup / "sitecustomize.py").write_text(
        f"import os, time\nopen({str(note)!r}, 'w').write(f'{{os.getpid()}}.')\ntime.sleep(1000)"
    )
    monkeypatch.setenv("PYTHONPATH", str(startup))
    with contextlib.closing(FreshImport(AuditSettings(), "pkg.a")):
        while not (note.exists() and note.read_text().endswith(".")):
            time.sleep(0.01)
    pid = int(note.read_text().rstrip("."))
    try:
        assert is_gone(pid)
    finally:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        ("raise SystemExit('no process is left')", "no process is left"),
        ("import os; os.kill(os.getpid(), 9)", "its interpreter ended at once"),
    ],
)
def test_an_interpreter_that_is_never_there_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ends: str, words: str
) -> None:
    """So it is where there is a process for the supervisor, and none for the interpreter."""
    script = tmp_path / "supervisor.py"
    script.write_text(ends)
    monkeypatch.setattr(supervisor, "__file__", str(script))
    looks: list[float] = []
    wait = FreshImport._wait

    def count(self: FreshImport, seconds: float) -> int | None:
        looks.append(seconds)
        assert len(looks) < 1000, "it has ended"
        return wait(self, seconds)

    monkeypatch.setattr(FreshImport, "_wait", count)
    with contextlib.closing(FreshImport(AuditSettings(), "pkg.a")) as fresh:
        fresh.answer(60.0)
    assert fresh.error == f"a process for the audit cannot be started: {words}"


def test_a_module_that_writes_to_all_descriptors_is_imported(folder: Path) -> None:
    writes = """
        import contextlib, os
        for fd in range(3, 64):
            with contextlib.suppress(OSError):
                os.write(fd, b"nonsense")
    """
    write_package(folder, "loud", {"__init__": writes})
    with contextlib.closing(FreshImport(AuditSettings(), "loud")) as fresh:
        answer = fresh.answer(60.0)
    assert answer["status"] == 0


def test_where_nothing_can_be_started_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError("no process is left")

    for module in (subprocess, unpatched.subprocess):
        monkeypatch.setattr(module, "Popen", refuse)
    before = set(os.listdir("/proc/self/fd"))
    for make in (lambda: AuditProcess(AuditSettings()), lambda: FreshImport(AuditSettings(), "a")):
        with pytest.raises(OSError, match="no process is left"):
            make()
    assert set(os.listdir("/proc/self/fd")) <= before, "what was there may go, as garbage does"


def test_the_environment_of_the_audit_has_nothing_of_a_watched_session() -> None:
    own = f"{process._OWN_FOLDER}/pytest_cudafork/_startup"
    environ = {
        "_CUDAFORK_LEDGER": "x",
        "PYTHONPATH": f"{own}:/other",
        "LD_LIBRARY_PATH": own,
        "HOME": "/home",
    }
    assert unwatched(environ) == {"PYTHONPATH": "/other", "HOME": "/home"}
