"""One fork server imports a package's modules; when it is lost, the module to blame is found."""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_cudafork.imports.audit import auditor as auditor_module
from pytest_cudafork.imports.audit.auditor import Auditor, why_not
from pytest_cudafork.imports.audit.process import AuditProcess
from pytest_cudafork.imports.values.records import ImportVerdict as V
from pytest_cudafork.imports.values.settings import AuditSettings
from tests.support.imports import TOUCH, write_package

ENDS_ITS_PARENT = "import os, signal, time\nos.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(60)"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@contextlib.contextmanager
def auditing(folder: Path, files: Mapping[str, str], **settings: Any) -> Iterator[Auditor]:
    write_package(folder, "pkg", {"__init__": "", **files})
    with contextlib.closing(Auditor("pkg", AuditSettings(**settings))) as auditor:
        yield auditor


def test_records_come_in_any_order_and_are_kept(folder: Path) -> None:
    files = {"hot": TOUCH, "cold": "", "broken": "import no_such_library"}
    with auditing(folder, files, jobs=2) as auditor:
        auditor.ask(["pkg.cold", "pkg.hot", "pkg.hot"])
        hot = auditor.record("pkg.hot")
        assert hot.verdict is V.TOUCHES
        assert hot.where == f"{folder}/pkg/hot.py:1"
        assert auditor.record("pkg.cold").verdict is V.CLEAN
        assert auditor.record("pkg.broken").verdict is V.NOT_IMPORTABLE, "it was not asked before"
        assert auditor.record("pkg.hot") is hot


def test_a_fresh_interpreter_answers_too(folder: Path) -> None:
    with auditing(folder, {"hot": TOUCH}) as auditor:
        record = auditor.import_afresh("pkg.hot")
    assert (record.verdict, record.module, record.package) == (V.TOUCHES, "pkg.hot", "pkg")


def test_the_module_that_ends_the_fork_server_is_found(folder: Path) -> None:
    files = {"a": "", "ends": ENDS_ITS_PARENT, "b": "import time; time.sleep(0.2)", "c": ""}
    with auditing(folder, files, jobs=3, timeout=100.0) as auditor:
        auditor.ask(["pkg.a", "pkg.b", "pkg.ends", "pkg.c"])
        verdicts = {name: auditor.record(f"pkg.{name}").verdict for name in ("a", "b", "ends", "c")}
        reason = auditor.record("pkg.ends").reason
    assert verdicts == {"a": V.CLEAN, "b": V.CLEAN, "ends": V.CRASHED, "c": V.CLEAN}
    assert reason.startswith("it ended the process that had started it, which ")


def test_it_is_found_though_the_fork_server_cannot_say_that_it_has_started_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So it is where the module runs before the fork server does: on few cores, under load.
    never = property(lambda self: {}, lambda self, started: None)
    monkeypatch.setattr(AuditProcess, "started", never, raising=False)
    files = {"a": "", "ends": ENDS_ITS_PARENT, "b": "", "c": TOUCH}
    with auditing(folder, files, timeout=100.0) as auditor:
        auditor.ask(["pkg.a", "pkg.ends", "pkg.b", "pkg.c"])
        verdicts = {name: auditor.record(f"pkg.{name}").verdict for name in ("a", "b", "ends", "c")}
    assert verdicts == {"a": V.CLEAN, "b": V.CLEAN, "ends": V.CRASHED, "c": V.TOUCHES}


def test_below_a_package_that_hangs_nothing_is_imported(folder: Path) -> None:
    files = {
        "slow/__init__": "import time; time.sleep(60)",
        "slow/a": "",
        "slow/b": "",
        "quick": "",
    }
    with auditing(folder, files, timeout=4.0) as auditor:
        auditor.ask(["pkg.quick", "pkg.slow", "pkg.slow.a"])
        assert auditor.record("pkg.slow").verdict is V.TIMED_OUT
        auditor.skip_below("pkg.slow")
        auditor.ask(["pkg.slow.b"])
        for name in ("pkg.slow.a", "pkg.slow.b"):
            record = auditor.record(name)
            assert record.verdict is V.TIMED_OUT
            assert record.reason == "its package pkg.slow took longer than 4 s"
        assert auditor.inferred == {"pkg.slow.a", "pkg.slow.b"}
        assert auditor.record("pkg.quick").verdict is V.CLEAN


def test_what_took_too_long_before_its_package_was_known_to_hang_did_so_because_of_it(
    folder: Path,
) -> None:
    files = {"slow/__init__": "import time; time.sleep(60)", "slow/a": ""}
    with auditing(folder, files, timeout=4.0, jobs=2) as auditor:
        auditor.ask(["pkg.slow", "pkg.slow.a"])
        # Which of two that run at once is told first is up to the machine.
        for name in ("pkg.slow.a", "pkg.slow"):
            assert auditor.record(name).reason.startswith("its import took longer than 4 s")
        auditor.skip_below("pkg.slow")
        assert auditor.record("pkg.slow.a").reason == "its package pkg.slow took longer than 4 s"
        assert auditor.inferred == {"pkg.slow.a"}
        assert "pkg.slow took" not in auditor.record("pkg.slow").reason


@pytest.mark.slow
def test_where_nothing_can_watch_every_module_says_why(folder: Path) -> None:
    with auditing(folder, {"a": ""}, without="sys") as auditor:
        records = [auditor.record("pkg"), auditor.record("pkg.a"), auditor.import_afresh("pkg.a")]
    for record in records:
        assert record.verdict is V.NOT_OBSERVABLE
        assert record.without == "sys"
        assert "sys cannot be hidden, for it is imported already" in record.reason
    assert "sys cannot be hidden" in why_not(AuditSettings(without="sys"))
    assert why_not(AuditSettings(without="no_such_library")) == ""


NO_FORKS = """
    import os

    def refuse():
        raise BlockingIOError(11, "no process is left")

    os.fork = refuse
"""


def test_where_the_fork_server_can_fork_nothing_every_module_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    startup = folder / "startup"
    startup.mkdir()
    (startup / "sitecustomize.py").write_text(textwrap.dedent(NO_FORKS))
    monkeypatch.setenv("PYTHONPATH", str(startup))
    starts: list[AuditProcess] = []
    begin = AuditProcess.__init__

    def count(self: AuditProcess, settings: AuditSettings) -> None:
        starts.append(self)
        begin(self, settings)

    monkeypatch.setattr(AuditProcess, "__init__", count)
    modules = ["pkg", "pkg.a", "pkg.b"]
    with auditing(folder, {"a": "", "b": ""}) as auditor:
        auditor.ask(modules)
        records = [auditor.record(name) for name in modules]
    for record in records:
        assert record.verdict is V.NOT_OBSERVABLE
        assert record.reason == (
            "a process for the audit cannot be started: [Errno 11] no process is left"
        )
    assert len(starts) == 3, "there may be room for it a moment later"


def test_where_no_process_can_be_started_every_module_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise OSError("no process is left")

    monkeypatch.setattr(auditor_module, "AuditProcess", refuse)
    monkeypatch.setattr(auditor_module, "FreshImport", refuse)
    with auditing(folder, {"a": ""}) as auditor:
        for record in (auditor.record("pkg.a"), auditor.import_afresh("pkg.a")):
            assert record.verdict is V.NOT_OBSERVABLE
            assert record.reason == (
                "a process for the audit cannot be started: no process is left"
            )
