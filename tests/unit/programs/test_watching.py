"""``watch()``: a program asks what a part of it did."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork import CudaForkError, PoisonedTouchError, watch
from pytest_cudafork.check import watch as watches
from pytest_cudafork.check.watch import Watch
from pytest_cudafork.observe.base.ledger import Ledger
from pytest_cudafork.observe.handed_on import WatchSettings
from pytest_cudafork.process.descendants import process_state
from pytest_cudafork.programs.watching import own_records
from pytest_cudafork.settings.environment import BLOCKS
from tests.support.programs import LIMIT, TOUCHES_AND_FORKS, environment, wait_until

# A driver that was loaded stays: what comes later in this process would see it, initialized.
pytestmark = pytest.mark.isolated(method="fork")

LIBRARY = "__import__('ctypes').CDLL('libcuda.so.1')"
TOUCH = f"{LIBRARY}.cuInit(0)"


@pytest.fixture(autouse=True)
def nothing_outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No watch of this very session."""
    monkeypatch.setattr(watches, "_nested", [])
    before = os.fork, variables()
    yield
    assert (os.fork, variables()) == before


def variables() -> dict[str, str]:
    """Return the environment, without what pytest changes for each phase of a test."""
    return {name: text for name, text in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


def child(code: str) -> None:
    """Run Python code in a process of its own."""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=LIMIT)


def test_what_a_child_did_is_told_and_kept() -> None:
    with watch() as watched:
        child(TOUCH)
        assert len(watched.touches) == 1
    assert [touch.frames[0].filename for touch in watched.touches] == ["<string>"]
    assert (watched.forks, watched.findings) == ((), ())
    watched.check()
    assert "CUDA was initialized by\n    <string>:1" in str(watched)
    child(f"try:\n    {TOUCH}\nexcept OSError:\n    pass")  # there may be no driver any more
    assert len(watched.touches) == 1  # it is over


def test_an_error_is_told_with_its_lines() -> None:
    poisons = (
        f"import os\ndef touch():\n    {TOUCH}\ntouch()\npid = os.fork()\n"
        "if not pid:\n    touch()\n    os._exit(0)\nos.waitpid(pid, 0)"
    )
    with watch() as watched:
        child(poisons)
    (finding,) = watched.findings
    assert finding.error is PoisonedTouchError
    assert len(watched.forks) == 1
    with pytest.raises(PoisonedTouchError, match="a forked child touched CUDA at <string>:3"):
        watched.check()


def test_the_guard_refuses_and_knows_what_an_outer_watch_has_seen(tmp_path: Path) -> None:
    program = tmp_path / "refused.py"
    program.write_text(
        f"{TOUCH}\nimport os\nfrom pytest_cudafork import CudaForkError, watch\n"
        "with watch(guard=True) as watched:\n"
        "    try:\n        os.fork()\n    except CudaForkError:\n        pass\n"
        "assert watched.findings == (), watched\n"
        "assert [fork.verdict for fork in watched.forks] == ['guarded']\n"
        "assert watched.touches == watched.unseen == (), watched\n"
        "with watch(guard=True) as watched:\n"
        "    try:\n        os.fork()\n    except Exception:\n        pass\n"
        "assert 'refused.py:14: CUDA was initialized at' in str(watched), watched\n"
    )
    with watch():
        subprocess.run([sys.executable, program], check=True, timeout=LIMIT)


LEAVES = f"""\
{TOUCH}
import os
from pytest_cudafork import CudaForkError, watch
kept = None
def leaves():
    global kept
    with watch(guard=True) as kept:
        os.fork()
try:
    leaves()
except Exception:
    pass
assert len(kept.findings) == 1, kept
assert "was caught" not in str(kept), kept
try:
    leaves()
except CudaForkError:
    pass
"""
"""One that is caught without its name outside of the block (line 11), and one by its name."""


def test_a_refusal_that_leaves_the_block_is_not_caught_by_it(tmp_path: Path) -> None:
    program = tmp_path / "leaves.py"
    program.write_text(LEAVES)
    with watch() as watched:
        subprocess.run([sys.executable, program], check=True, timeout=LIMIT)
    records = watched._deeds().history.records
    caught = [one for one in records if one["k"] == "caught"]
    assert [(one["filename"], one["line"], one["by_name"]) for one in caught] == [
        (str(program), 11, False),
        (str(program), 17, True),
    ]
    assert "leaves.py:11 in <module>" in str(watched)


def test_a_watch_in_force_goes_on_and_misses_nothing(tmp_path: Path) -> None:
    settings = WatchSettings(str(tmp_path / "ledger"), "absent", "poison")
    Ledger(settings.ledger).create()
    outer = Watch(settings, str(os.getpid()))
    outer.begin()
    try:
        outer.observer.record_touch("before", again=False, stack=[])
        with watch(device="none") as inner:
            assert watches.current_watch() is outer
            child(TOUCH)
        assert [touch.entry for touch in inner.touches] == ["cuInit"]
        with watch(guard=True):
            stricter = watches.current_watch()
            assert stricter is not None
            assert stricter.observer.settings == settings._replace(level="fork")
            child(TOUCH)
        assert watches.current_watch() is outer
        touches = [one for one in outer.observer.records() if one["k"] == "touch"]
        assert [one["entry"] for one in touches] == ["before", "cuInit", "cuInit"]
    finally:
        outer.end()


def test_records_of_others_are_not_ours() -> None:
    here = {"owner": "1", "test": "test_a"}
    before = [{"k": "process", "id": "0", "pid": 5, "ppid": 1}]
    records: list[dict[str, Any]] = [
        {"k": "process", "id": "m", "pid": 1, "ppid": 0, **here},
        {"k": "process", "id": "a", "pid": 3, "ppid": 2},
        {"k": "process", "id": "b", "pid": 2, "ppid": 1},
        {"k": "fork", "id": "c", "pid": 1, **here},
        {"k": "caught", "id": "d", "pid": 9, "fork": "c"},
        {"k": "touch", "id": "of another family", "pid": 8, "ppid": 7},
        {"k": "touch", "id": "e", "pid": 6, "ppid": 5},  # by a process that was there before
        {"k": "process", "id": "f", "pid": 11, "ppid": 10, "blocks": ["x", "y"]},  # by a shell
        {"k": "touch", "id": "g", "pid": 12, "ppid": 11},
        {"k": "process", "id": "in another block", "pid": 13, "ppid": 10, "blocks": ["x"]},
        {"k": "touch", "id": "h", "pid": 15, "ppid": 14, **here},  # no Python, by a shell
        {"k": "touch", "id": "of another test", "pid": 16, "ppid": 14, "owner": "1"},
        {"k": "touch", "id": "of a known parent", "pid": 17, "ppid": 13, **here},
    ]
    ids = [one["id"] for one in own_records(before, records, 1, "y")]
    assert ids == ["m", "a", "b", "c", "d", "e", "f", "g", "h"]


BY_OTHERS = {
    "a shell": "subprocess.run(['sh', '-c', '\"$0\" \"$1\"; true', sys.executable, sys.argv[1]])",
    "one that has ended": (
        "os.fork() or (time.sleep(0.1), os.execv(sys.executable, ['python', sys.argv[1]]))"
    ),
}


@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.parametrize("starter", BY_OTHERS)
def test_what_is_started_by_others_in_the_block_is_seen(
    starter: str, outer: bool, tmp_path: Path
) -> None:
    """By a program that is no Python, or by one that has ended before it began."""
    program = tmp_path / "prog.py"
    program.write_text(f"{TOUCHES_AND_FORKS[:-12]}\nopen('done', 'w').close()\n")
    starts = f"import os, subprocess, sys, time\n{BY_OTHERS[starter]}"
    with watch() if outer else contextlib.nullcontext(), watch() as watched:
        command = [sys.executable, "-c", starts, str(program)]
        subprocess.run(command, check=True, timeout=LIMIT, cwd=tmp_path)
        wait_until(lambda: (tmp_path / "done").exists())
    assert [touch.poisoned for touch in watched.touches] == [False, True]
    with pytest.raises(PoisonedTouchError, match="a forked child touched CUDA at "):
        watched.check()


def test_there_may_be_no_such_device_or_system(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="is not a device"), watch(device="tpu"):
        pass
    with watch(), pytest.raises(ValueError, match="is not a device"), watch(device="tpu"):
        pass
    for wrong in (3, True, b"real", ["real"], []):
        with pytest.raises(TypeError, match=r"device=.*: a text"), watch(device=wrong):  # type: ignore[arg-type]
            pass
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(RuntimeError, match="works on Linux only"), watch():
        pass


def test_it_ends_with_the_block_whatever_ends_that() -> None:
    with pytest.raises(CudaForkError), watch() as watched:
        raise CudaForkError("of somebody")
    assert watched.touches == ()
    assert environment().keys() <= os.environ.keys()


CHILD_LEAVES = f"""\
import os, sys
from pytest_cudafork import PoisonedTouchError, watch
def touch():
    {TOUCH}
def works():
    with watch() as watched:
        touch()
        pid = os.fork()
        if pid == 0:
            touch()
            sys.exit(0)  # leaves the block, too
        os.waitpid(pid, 0)
    return watched
watched = works()
assert len(watched.touches) == 2, watched
assert watched.unseen == (), watched
try:
    watched.check()
except PoisonedTouchError:
    sys.exit(5)
"""


def test_a_forked_child_that_leaves_the_block_takes_nothing_from_its_parent(tmp_path: Path) -> None:
    program = tmp_path / "leaves.py"
    program.write_text(CHILD_LEAVES)
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    assert subprocess.run([sys.executable, program], env=env, timeout=LIMIT).returncode == 5
    assert list(tmp_path.iterdir()) == [program]


RUNS_ON = """\
import contextlib, multiprocessing, os, signal, subprocess, sys, time
from pytest_cudafork import watch

def main():
    server = multiprocessing.get_context("forkserver")
    if sys.argv[1] == "older server":
        before = server.Process(target=time.sleep, args=(0,))
        before.start()
        before.join()
    sleeps = [sys.executable, "-c", "import time; time.sleep(60)"]
    with subprocess.Popen(["sleep", "60"]) as earlier, contextlib.ExitStack() as undo:
        undo.callback(earlier.kill)
        with watch() as watched:
            started = undo.enter_context(subprocess.Popen(sleeps, stdout=subprocess.PIPE))
            undo.callback(started.kill)
            subprocess.run([sys.executable, "-c", "pass"], check=True)
            of_server = server.Process(target=time.sleep, args=(60,))
            of_server.start()  # the server itself, and what tidies up, stay for the next one
            undo.callback(of_server.kill)
            forked = os.fork()
            if not forked:
                time.sleep(60)
                os._exit(0)
            undo.callback(os.waitpid, forked, 0)
            undo.callback(os.kill, forked, signal.SIGKILL)
            assert not watched.running  # the block is not over
        found = {one.pid for one in watched.running}
        assert found == {started.pid, of_server.pid, forked}, watched.running
    text = str(watched)
    assert "still running, and what it does from now on is not seen:\\n" in text, text
    assert f"\\n    {started.pid} {sys.executable} -c import time" in text, text

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("server", ["new server", "older server"])
def test_what_runs_on_after_the_block_is_told(server: str, tmp_path: Path) -> None:
    """By a program: a fork of a process with a fork server cannot use that of its parent."""
    program = tmp_path / "runs_on.py"
    program.write_text(RUNS_ON)
    done = subprocess.run(
        [sys.executable, program, server], capture_output=True, text=True, timeout=LIMIT
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("asleep", [0.0, 1000.0])
def test_one_that_has_lost_its_parent_is_known_if_it_was_watched(
    asleep: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the machine has slept, which counts for the start of a process alone."""
    started_at, clock = process_state.started_at, time.clock_gettime
    leaps = {time.CLOCK_BOOTTIME: asleep, time.CLOCK_MONOTONIC: 0.0}
    about = {**vars(time), "clock_gettime": lambda number: clock(number) + leaps[number]}
    with_sleep = SimpleNamespace(**about)
    monkeypatch.setattr(process_state, "time", with_sleep)
    monkeypatch.setattr(process_state, "started_at", lambda pid: started_at(pid) + asleep)
    told = tmp_path / "pid"
    orphan = f"import os, time; open({str(told)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    starter = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {orphan!r}])"
    with watch() as watched:
        child(starter)
        wait_until(lambda: told.exists() and told.read_text())
    pid = int(told.read_text())
    try:
        assert [one.pid for one in watched.running] == [pid]
    finally:
        os.kill(pid, signal.SIGKILL)


def test_blocks_that_do_not_end_within_each_other_say_what_is_lost() -> None:
    first, second = watch(), watch()  # as in two tasks
    with first:
        watched = second.__enter__()
    second.__exit__(None, None, None)
    assert any("cannot be read any more" in words for words in watched.unseen)
    assert BLOCKS not in os.environ
