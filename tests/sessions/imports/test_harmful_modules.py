"""Modules that harm the process which imports them: one clear verdict each, and nothing left."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_cudafork import ImportRecord
from pytest_cudafork.imports.audit.auditor import Auditor
from pytest_cudafork.imports.report.story import story_lines
from pytest_cudafork.process import server_process
from tests.support.imports import (
    TOUCH,
    XDIST,
    assert_gone,
    audit_here,
    needs_xdist,
    run_audit,
    verdicts_of,
    write_package,
)
from tests.support.isolation import is_gone

INNOCENT = {
    "__init__": "",
    "a_clean": "VALUE = 1",
    "a_touch": TOUCH,
    "z_clean": "from {package} import a_clean",
    "z_touch": "from {package} import a_touch",
}
INNOCENT_VERDICTS = {
    "": "clean",
    "a_clean": "clean",
    "a_touch": "touches",
    "z_clean": "clean",
    "z_touch": "touches",
}

_NOTE = """
import os, signal, subprocess, sys, threading, time

def note(pid):
    # Tells the test of a process that must be gone in the end.
    with open({notes!r}, "a") as file:
        file.write(f"{{pid}}\\n")

"""


@pytest.fixture(autouse=True)
def _nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[None]:
    """Check for processes, descriptors and files after a test."""
    mark = uuid.uuid4().hex
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("IMPORTS_TEST", mark)
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", None)
    before = set(os.listdir("/proc/self/fd"))
    yield
    if "pytester" not in request.fixturenames:  # else the audit is another process's
        assert set(os.listdir("/proc/self/fd")) <= before
    notes = tmp_path / "notes"
    for pid in notes.read_text().split() if notes.exists() else ():
        assert is_gone(int(pid))
    assert_gone(mark)
    assert list(temporary.iterdir()) == []


def package(folder: Path, name: str, files: dict[str, str]) -> None:
    """Write a package of innocent modules, and others."""
    note = _NOTE.format(notes=str(folder / "notes"))
    write_package(folder, name, {k: v.format(package=name) for k, v in INNOCENT.items()})
    write_package(folder, name, {key: note + text for key, text in files.items()})


def check(
    records: dict[str, ImportRecord], name: str, expected: dict[str, str], innocent: bool = True
) -> None:
    """Check all verdicts of a package; a value may hold words of the reason after a colon."""
    wanted = {**(INNOCENT_VERDICTS if innocent else {}), **expected}
    verdicts = {
        key.removeprefix(name).removeprefix("."): value
        for key, value in verdicts_of(records).items()
    }
    reasons = {record.module: record.reason for record in records.values()}
    assert verdicts == {key: value.partition(": ")[0] for key, value in wanted.items()}, reasons
    for key, value in expected.items():
        reason = records[f"{name}.{key}" if key else name].reason
        assert value.partition(": ")[2] in reason, (key, reason)
        assert reason.isprintable(), (key, reason)
        assert len(reason) < 400, (key, reason)
    for record in records.values():
        told = "\n".join(story_lines(record))
        assert "pytest_cudafork" not in told, told


ENDS = {
    "exits": ("sys.exit(3)", "not importable: it calls sys.exit(3)"),
    "exits_well": ("print('usage')\nsys.exit()", "not importable: it calls sys.exit(None)"),
    "os_exit": ("os._exit(0)", "crashed: the process exited with status 0 during the import"),
    "segfaults": ("import ctypes; ctypes.string_at(0)", "crashed: killed by SIGSEGV"),
    "aborts": ("os.abort()", "crashed: killed by SIGABRT"),
    "kills_itself": ("os.kill(os.getpid(), signal.SIGKILL)", "crashed: killed by SIGKILL"),
    "kills_group": ("os.killpg(0, signal.SIGKILL)", "crashed: killed by SIGKILL"),
    "alarm": ("signal.alarm(1); time.sleep(30)", "crashed: killed by SIGALRM"),
    "becomes_another": (
        "os.execv(sys.executable, [sys.executable, '-c', 'print(1)'])",
        "crashed: exited with status 0",
    ),
    "touches_and_ends": (f"{TOUCH}\nos._exit(4)", "touches, then crashes: exited with status 4"),
}

ERRORS = {
    "base": ("class Odd(BaseException): pass\nraise Odd('odd')", "not importable: Odd: odd"),
    "interrupts": ("raise KeyboardInterrupt", "not importable: KeyboardInterrupt"),
    "recursion": ("def f(): f()\nf()", "not importable: RecursionError"),
    "mute": (
        "class Bad(Exception):\n    def __str__(self): 1 / 0\nraise Bad",
        "not importable: Bad: (its text raises ZeroDivisionError)",
    ),
    "huge": ("raise ValueError('x' * 5_000_000)", "not importable: ValueError: xxx"),
    "unprintable": (
        "raise ValueError('\\udcff \\x00 \\x1b[31m')",
        r"not importable: ValueError: \udcff \x00 \x1b[31m",
    ),
    "exit_huge": ("sys.exit('y' * 5_000_000)", "not importable: it calls sys.exit('yyy"),
    "no_name": ("raise ModuleNotFoundError('x', name=3)", "not importable: ModuleNotFoundError: x"),
    "syntax": ("def (", "not importable: SyntaxError"),
    "asks": ("input()", "not importable: EOFError"),
}

INTERPRETER = {
    "deletes_modules": ("del sys.modules", "not importable: AttributeError"),
    "clears_modules": ("sys.modules.clear()", "not importable: KeyError"),
    "new_modules": ("sys.modules = {}", "not importable: KeyError"),
    "is_none": ("sys.modules[__name__] = None", "clean"),
    "odd_names": ("sys.modules[3] = sys", "clean"),
    "patches_import": (
        "import builtins\ndef no(*a, **k): raise RuntimeError('no')\nbuiltins.__import__ = no",
        "clean",
    ),
    "no_paths": ("sys.path.clear(); sys.meta_path.clear(); sys.path_hooks.clear()", "clean"),
    "traces": ("sys.setprofile(lambda *a: None)\nsys.settrace(lambda *a: None)", "clean"),
    "no_depth": ("sys.setrecursionlimit(50)", "clean"),
    "replaces_os": (
        "def no(*a): raise RuntimeError('no')\n"
        "os._exit = os.fork = os.getpid = os.listdir = os.getcwd = sys.exit = no",
        "clean",
    ),
    "replaces_json": (
        "import json, mmap\njson.dumps = json.loads = mmap.mmap = time.monotonic = None",
        "clean",
    ),
    "breaks_it": ("signal.getitimer = None", "not observable: has broken the interpreter: TypeErr"),
}

PROCESS = {
    "closes_all": ("os.closerange(0, 4096)", "clean"),
    "reopens": (
        "os.closerange(0, 4096)\nfor _ in range(50): os.open(__file__, os.O_RDWR)",
        "clean",
    ),
    "changes_folder": ("os.chdir('/')", "clean"),
    "no_environment": ("os.environ.clear(); os.environ['_CUDAFORK_LEDGER'] = '/no'", "clean"),
    "parent_group": ("os.setpgid(0, os.getpgid(os.getppid()))", "clean"),
    "few_files": (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))",
        "clean",
    ),
    "bad_streams": (
        "class Bad:\n    def write(self, *a): raise RuntimeError('no')\n    flush = write\n"
        "sys.stdout = sys.stderr = sys.__stdout__ = Bad()",
        "clean",
    ),
    "prints_much": ("for _ in range(160): print('x' * 65536)\nprint('the end')", "clean"),
    "prints_no_line": ("sys.stdout.write('no line')", "clean"),
    "ignores": (
        "for each in (signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD, signal.SIGABRT):\n"
        "    signal.signal(each, signal.SIG_IGN)",
        "clean",
    ),
    "handles": (
        "for each in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:\n"
        "    signal.signal(each, lambda *a: 1 / 0)\n"
        "signal.setitimer(signal.ITIMER_REAL, 5)",
        "clean",
    ),
    "thread": ("threading.Thread(target=time.sleep, args=(600,)).start()", "clean"),
    "daemon": ("threading.Thread(target=time.sleep, args=(600,), daemon=True).start()", "clean"),
    "at_exit": ("import atexit; atexit.register(time.sleep, 600)", "clean"),
    "touch_in_thread": (
        f"def touch(): {TOUCH}\nt = threading.Thread(target=touch); t.start(); t.join()",
        "touches",
    ),
}

CHILDREN = {
    "forks": ("if os.fork() == 0:\n    os._exit(0)", "clean"),
    "forks_on": ("os.fork()", "clean"),
    "stays": ("if os.fork() == 0:\n    note(os.getpid())\n    time.sleep(600)", "clean"),
    "daemonizes": (
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        note(os.getpid())\n        time.sleep(600)\n    os._exit(0)",
        "clean",
    ),
    "spawns": (
        "p = subprocess.Popen(['sleep', '600'], start_new_session=True, env={})\nnote(p.pid)",
        "clean",
    ),
    "child_touches": (
        f"pid = os.fork()\nif pid == 0:\n    {TOUCH}\n    os._exit(0)\nos.waitpid(pid, 0)",
        "clean",
    ),
    "hits_parent": (
        "for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):\n"
        "    os.kill(os.getppid(), each)",
        "clean",
    ),
    "kills_parent": (
        "note(os.getpid())\nos.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(60)",
        "crashed: it ended the process that had started it, which was killed by SIGKILL",
    ),
    "kills_parents_group": (
        "group = os.getpgid(os.getppid())\nos.setpgid(0, group)\n"
        "os.killpg(group, signal.SIGKILL)\ntime.sleep(60)",
        "crashed: it ended the process that had started it",
    ),
}


@pytest.mark.parametrize(
    "cases",
    [ENDS, ERRORS, INTERPRETER, PROCESS, CHILDREN],
    ids=["ends", "errors", "interpreter", "process", "children"],
)
def test_each_gets_its_verdict_and_does_not_touch_the_others(
    tmp_path: Path, cases: dict[str, tuple[str, str]]
) -> None:
    files = {name: text for name, (text, _) in cases.items()}
    package(tmp_path, "foe", files)
    records = audit_here("foe", tmp_path, timeout=100, jobs=2)
    check(records, "foe", {name: verdict for name, (_, verdict) in cases.items()})
    assert not [record.module for record in records.values() if record.confirmed is False]
    if "prints_much" in cases:
        assert records["foe.prints_much"].output.endswith("xxx\nthe end")
        assert len(records["foe.prints_much"].output) < 5000
        assert records["foe.prints_no_line"].output == "no line"
    if "segfaults" in cases:
        assert 'foe/segfaults.py", line' in records["foe.segfaults"].output
        assert records["foe.touches_and_ends"].where.endswith("touches_and_ends.py:9")


# Each is imported by many, so that it is tried in the fork server.
@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("os.killpg(0, signal.SIGKILL)", "crashed"),
        ("os.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(60)", "crashed"),
        ("os.closerange(3, 4096)", "clean"),
        ("os._exit(0)", "crashed"),
        ("signal.signal(signal.SIGCHLD, signal.SIG_IGN); signal.alarm(10)", "clean"),
        ("if os.fork() == 0:\n    note(os.getpid()); time.sleep(600)\nos._exit(1)", "crashed"),
        ("os.fork = os._exit = os.waitpid = os.read = None", "clean"),
        ("import select\nselect.poll = None\nos.chdir('/')", "clean"),
        ("sys.modules.pop('select'); sys.setrecursionlimit(60)", "clean"),
        (f"threading.Timer(0.2, lambda: exec({TOUCH!r})).start()", "touches"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_what_is_tried_in_the_fork_server_does_not_spoil_it(
    tmp_path: Path, text: str, verdict: str
) -> None:
    users = {f"user{number}": "from foe.common import note" for number in range(5)}
    package(tmp_path, "foe", {"common": text, **users})
    records = audit_here("foe", tmp_path, confirm=False, timeout=100)
    check(records, "foe", dict.fromkeys(("common", *users), verdict))


LIMIT = 4
"""Seconds for imports of which some hang: the others must not take so long, on no machine."""
HANGS = {
    "loops": "while True: pass",
    "blocks": "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\n"
    "while True: time.sleep(0.01)",
    "in_c": "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\n"
    "import ctypes; ctypes.CDLL(None).sleep(600)",
    "stops": "os.kill(os.getpid(), signal.SIGSTOP)",
    "deadlock": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "touches_first": f"{TOUCH}\ntime.sleep(600)",
    "prints_for_ever": "while True: print('x' * 65536); time.sleep(0.001)",
    "another_program": "os.execvp('sleep', ['sleep', '600'])",
}


def test_those_that_hang_are_ended_in_time(tmp_path: Path) -> None:
    package(tmp_path, "foe", HANGS)
    records = audit_here("foe", tmp_path, timeout=LIMIT, jobs=4, confirm=False)
    check(records, "foe", dict.fromkeys(HANGS, f"timed out: its import took longer than {LIMIT} s"))
    for name in ("loops", "stops", "deadlock", "touches_first"):
        assert f'foe/{name}.py", line' in records[f"foe.{name}"].output
    assert records["foe.touches_first"].where.endswith("touches_first.py:9")


def test_one_that_hangs_is_confirmed(tmp_path: Path) -> None:
    package(tmp_path, "foe", {"deadlock": HANGS["deadlock"]})
    records = audit_here("foe", tmp_path, timeout=LIMIT)
    check(records, "foe", {"deadlock": f"timed out: its import took longer than {LIMIT} s"})
    assert records["foe.deadlock"].confirmed is True


def test_below_a_package_that_hangs_nothing_is_imported_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, start = tmp_path / "begun", time.monotonic()
    confirmed: list[float] = []
    skip_below = Auditor.skip_below

    def note(auditor: Auditor, package: str) -> None:
        confirmed.append(time.monotonic() - start)
        skip_below(auditor, package)

    monkeypatch.setattr(Auditor, "skip_below", note)
    sub = f"open({str(begun)!r}, 'a').write('.'); time.sleep(600)"
    package(tmp_path, "foe", {"sub/__init__": sub, "zone": "", "sub/one": ""})
    write_package(tmp_path, "foe/sub", {f"m{number}": "" for number in range(60)})
    records = audit_here("foe", tmp_path, timeout=LIMIT, jobs=2)
    # Two at a time, until a fresh interpreter has confirmed it, and two when that comes.
    (seconds,) = confirmed
    assert len(begun.read_text()) <= 2 * (seconds // LIMIT + 1) + 1 + 2
    hanging = ["sub", "sub.one", *(f"sub.m{number}" for number in range(60))]
    check(
        records,
        "foe",
        {**dict.fromkeys(hanging, f"timed out: took longer than {LIMIT} s"), "zone": "clean"},
    )
    assert records["foe.sub"].confirmed is True
    assert records["foe.sub.m59"].reason == f"its package foe.sub took longer than {LIMIT} s"


STOPS = "os.kill(os.getppid(), signal.SIGSTOP)"


def test_a_fork_server_that_was_stopped_is_continued_once_and_else_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A module is not to be held up so long between two stops that are to be one.
    monkeypatch.setattr(server_process, "_LOOK_SECONDS", 2.0)
    modules = {
        "stops_parent": STOPS,
        "stops_it_twice": f"{STOPS}\n{STOPS}",  # which are one
        "stops_it_for_ever": f"while True: {STOPS}; time.sleep(0.01)",
    }
    package(tmp_path, "foe", modules)
    records = audit_here("foe", tmp_path, timeout=100, jobs=2, confirm=False)
    verdicts = {
        "stops_parent": "clean",
        "stops_it_twice": "clean",
        "stops_it_for_ever": "crashed: it ended the process that had started it",
    }
    check(records, "foe", verdicts)


def test_a_module_that_stops_the_process_above_a_fresh_interpreter_is_no_hang(
    tmp_path: Path,
) -> None:
    package(tmp_path, "foe", {"touches": f"{STOPS}\n{TOUCH}"})
    records = audit_here("foe", tmp_path, timeout=100)
    check(records, "foe", {"touches": "touches"})
    assert records["foe.touches"].confirmed is True


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("sys.exit(2)", "not importable: it calls sys.exit(2)"),
        ("os._exit(2)", "crashed: exited with status 2"),
        ("import ctypes; ctypes.string_at(0)", "crashed: killed by SIGSEGV"),
        ("for _ in range(160): print('x' * 65536)", "clean"),
        ("threading.Thread(target=time.sleep, args=(600,)).start()", "clean"),
        ("if os.fork() == 0:\n    note(os.getpid()); time.sleep(600)", "clean"),
        ("def no(*a): raise OSError('no')\nos.listdir = open = no", "clean"),
        ("signal.signal(signal.SIGTERM, lambda *a: 1 / 0)", "clean"),
        ("os.kill(os.getppid(), signal.SIGKILL); time.sleep(60)", "crashed: it ended the process"),
        (TOUCH, "touches"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_a_package_that_does_it_at_its_root(tmp_path: Path, text: str, verdict: str) -> None:
    package(tmp_path, "foe", {"__init__": text})
    records = audit_here("foe", tmp_path, timeout=100, jobs=2)
    if verdict == "clean":
        check(records, "foe", {"": verdict})
    else:
        check(records, "foe", dict.fromkeys(INNOCENT_VERDICTS, verdict), innocent=False)


@needs_xdist
def test_in_a_session_with_workers(pytester: pytest.Pytester) -> None:
    names = ("exits", "segfaults", "kills_parent", "unprintable", "mute", "daemonizes", "spawns")
    cases = {name: case for name, case in {**ENDS, **ERRORS, **CHILDREN}.items() if name in names}
    package(pytester.path, "foe", {name: text for name, (text, _) in cases.items()})
    session = run_audit(pytester, *XDIST, "-n2", "--cuda-fork-imports=foe", "--junitxml=j.xml")
    expected = {f"foe.{name}": verdict.partition(": ")[0] for name, (_, verdict) in cases.items()}
    innocent = {f"foe.{name}" if name else "foe": v for name, v in INNOCENT_VERDICTS.items()}
    assert session.verdicts == {**expected, **innocent}
    assert r"not importable: foe.unprintable: ValueError: \udcff \x00 \x1b[31m" in session.section()
    assert (pytester.path / "j.xml").stat().st_size > 1000
