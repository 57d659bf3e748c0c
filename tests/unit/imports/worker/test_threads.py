"""Threads that an import leaves running: waited for within bounds, and told where they run on."""

from __future__ import annotations

import _thread
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from pytest_cudafork import ImportRecord
from pytest_cudafork.imports.audit import verdicts
from pytest_cudafork.imports.audit.baseline import Baseline, Entry
from pytest_cudafork.imports.command_line import main
from pytest_cudafork.imports.values.left_behind import RunningThread
from pytest_cudafork.imports.values.records import ImportVerdict, from_plain, to_plain
from pytest_cudafork.imports.values.settings import AuditSettings
from pytest_cudafork.imports.worker import threads
from pytest_cudafork.imports.worker.threads import Threads, WaitBudget
from tests.support.imports import TOUCH, audit_here, verdicts_of, write_package
from tests.support.sessions import needs_torch

LATE = f"""\
import threading, time
def late():
    time.sleep(0.3)
    {TOUCH}
threading.Thread(target=late).start()"""
EVER = """\
import threading, time
threading.Thread(target=time.sleep, args=(600,), name="server"{}).start()"""


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[float]]:
    """How long threads were waited for after each import of a module."""
    judge, found = verdicts.judge, defaultdict[str, list[float]](list)

    def note(package: str, settings: AuditSettings, answer: Any, *args: Any) -> ImportRecord:
        found[answer["module"]].append(answer["told"]["waited"])
        return judge(package, settings, answer, *args)

    monkeypatch.setattr(verdicts, "judge", note)
    return found


@pytest.mark.slow
def test_a_thread_that_touches_late_is_waited_for(
    tmp_path: Path, waited: dict[str, list[float]]
) -> None:
    serves = LATE.replace("\nthreading.Thread", "\n    time.sleep(600)\nthreading.Thread")
    files = {
        "__init__": "",
        "late": LATE,
        "user": "import slow.late",
        "serves": serves,
        "z_user": "import slow.serves",
        "ends": "import threading, time\nthreading.Thread(target=time.sleep, args=(0.2,)).start()",
    }
    write_package(tmp_path, "slow", files)
    records = audit_here("slow", tmp_path, timeout=60)
    longest = threads._MOST_SECONDS
    assert [name for name, waits in waited.items() if max(waits) >= longest] == []
    touching = dict.fromkeys(("late", "user", "serves", "z_user"), "touches")
    expected = {f"slow.{name}": verdict for name, verdict in touching.items()}
    assert verdicts_of(records) == {"slow": "clean", "slow.ends": "clean", **expected}
    assert records["slow.user"].where == f"{tmp_path}/slow/late.py:4"
    assert records["slow.late"].confirmed is True
    assert not records["slow.ends"].running
    assert not any(record.confirmed is False for record in records.values())


@pytest.mark.slow
@needs_torch
def test_by_way_of_torch_too(tmp_path: Path) -> None:
    text = LATE.replace(TOUCH, "torch.cuda.is_available()")
    write_package(tmp_path, "slow", {"__init__": f"import torch\n{text}"})
    records = audit_here("slow", tmp_path)
    assert verdicts_of(records) == {"slow": "touches"}
    assert records["slow"].where == f"{tmp_path}/slow/__init__.py:5"
    assert records["slow"].confirmed is True


@pytest.mark.slow
def test_one_that_runs_on_is_told_and_waited_for_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    waited: dict[str, list[float]],
) -> None:
    users = {f"user{number}": "import keeps.server" for number in range(30)}
    daemon = EVER.format(", daemon=True")
    files = {"__init__": "", "server": EVER.format(""), "daemon": daemon, "plain": "", **users}
    write_package(tmp_path, "keeps", files)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert main(["keeps", "--device=phantom:sm_90", "--jobs=2"]) == 0
    assert len(waited) == 34
    # two are imported at a time, and no other begins before it is known of one of them
    assert sum(wait > 0 for waits in waited.values() for wait in waits) in (1, 2)
    lines = capsys.readouterr().out.splitlines()
    names = "keeps.server, keeps.user0, keeps.user1, keeps.user10, keeps.user11 and 26 more"
    assert (
        f"clean so far: {names}: 1 thread still runs (server, started at keeps/server.py:2)"
        in lines
    )
    assert (
        "clean so far: keeps.daemon: 1 thread still runs (daemon server, started at "
        "keeps/daemon.py:2)"
    ) in lines
    assert lines[-1] == "keeps: 34 modules: 34 clean (32 of them so far)"
    (confirmed,) = [line for line in lines if line.startswith("confirmed")]
    assert "clean so far" in confirmed


def test_the_record_names_the_line_that_started_it(tmp_path: Path) -> None:
    pool = (
        "from concurrent.futures import ThreadPoolExecutor as Pool\npool = Pool()\npool.submit(int)"
    )
    files = {"__init__": "", "pool": pool, "two": f"{EVER.format('')}\n{EVER.format('')}"}
    write_package(tmp_path, "keeps", files)
    records = audit_here("keeps", tmp_path, confirm=False, timeout=8)
    assert verdicts_of(records) == dict.fromkeys(("keeps", "keeps.pool", "keeps.two"), "clean")
    (worker,) = records["keeps.pool"].running
    assert worker == RunningThread("ThreadPoolExecutor-0_0", f"{tmp_path}/keeps/pool.py:3", False)
    lines = [thread.where.rpartition("/")[2] for thread in records["keeps.two"].running]
    assert lines == ["two.py:2", "two.py:4"]
    assert not records["keeps"].so_far
    for record in records.values():
        assert from_plain(to_plain(record)) == record


def test_waiting_never_makes_an_import_take_too_long(tmp_path: Path) -> None:
    write_package(tmp_path, "keeps", {"__init__": EVER.format("")})
    records = audit_here("keeps", tmp_path, timeout=8)
    assert verdicts_of(records) == {"keeps": "clean"}
    assert records["keeps"].so_far


def test_a_module_that_is_clean_so_far_stays_in_the_baseline() -> None:
    thread = RunningThread("server", "a.py:1", daemon=False)
    record = ImportRecord("pkg.a", "pkg", ImportVerdict.CLEAN, running=(thread,))
    baseline = Baseline([Entry("pkg.a", "a.py:1")])
    assert baseline.stale([record]) == []
    assert baseline.updated([record]) == baseline


def test_a_budget_of_waiting_is_spent() -> None:
    budget = WaitBudget(AuditSettings(timeout=120))
    assert budget.seconds_after("a", 0) == threads._MOST_SECONDS
    assert budget.seconds_after("a", 119) == 0.5
    assert budget.seconds_after("a", 130) == 0
    endless = RunningThread("server", "a.py:1", daemon=False)
    daemon = RunningThread("watcher", "b.py:1", daemon=True)
    budget.spend(0.0, [endless])  # it was not waited for
    assert budget.endless == set()
    budget.spend(5.0, [endless, daemon])
    assert budget.endless == {"a.py:1"}
    for _ in range(30):
        budget.spend(2.0, [])
    assert budget.seconds_after("a", 0) == 0


def test_where_no_thread_was_started_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", threading.Thread.start)  # is put back
    seen = Threads()
    seen.watch()
    assert seen.wait(60, (), lambda: False) == 0.0
    release = threading.Event()
    thread = threading.Thread(target=release.wait, name="x" * 100 + "\n")
    thread.start()
    (running,) = seen.running()
    assert running.where.startswith(f"{__file__}:")
    assert running.name == "x" * 60 + "..."
    assert seen.wait(0.05, (), lambda: False) >= 0.05
    assert seen.wait(60, (running.where,), lambda: False) == 0.0
    assert seen.wait(60, (), lambda: True) == 0.0
    release.set()
    thread.join()
    assert seen.running() == []


def test_a_thread_past_threading_has_not_the_line_of_one_that_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threading.Thread, "start", threading.Thread.start)  # is put back
    seen = Threads()
    seen.watch()
    release, met = threading.Event(), threading.Semaphore(0)

    def serve() -> None:
        threading.current_thread()  # as logging asks, which makes an object for it
        met.release()
        release.wait()

    started = [threading.Thread(target=int) for _ in range(50)]
    for each in started:
        each.start()
        each.join()
    del started, each  # others may have their identities now
    for _ in range(20):
        _thread.start_new_thread(serve, ())
        met.acquire()
    try:
        assert {running.where for running in seen.running()} == {""}
    finally:
        release.set()
