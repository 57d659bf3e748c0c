"""Files run one after the other in children of one template, and how each is told."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_cudafork.file_worker import runner as runner_module
from pytest_cudafork.file_worker.runner import FileRunner
from pytest_cudafork.process import supervision
from pytest_cudafork.process.protocol import frames, messages
from tests.support.isolation import is_gone
from tests.support.leaping_clock import LIMIT, leap_when
from tests.support.signs import wait_until


@pytest.fixture(scope="module")
def runner() -> Iterator[FileRunner]:
    made = FileRunner(["json"], arguments=["-f"], timeout=LIMIT)
    assert made.start() is None
    yield made
    made.close()


def _write(file: Path, text: str) -> str:
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    return str(file)


@pytest.mark.parametrize(
    ("text", "code", "why"),
    [
        ("pass", 0, ""),
        ("import sys; sys.exit(7)", 7, ""),
        ("import os; os.kill(os.getpid(), 9)", 137, "it was killed by SIGKILL"),
        ("import os; os._exit(0)", 0, "ended its process before its end"),
        ("import os; os._exit(5)", 5, ""),
        ("import os; os.closerange(3, 99)", 70, "could not report: did the file close descriptors"),
        ("import sys; sys.exit(70)", 70, ""),
        (
            "import atexit, os; atexit.register(os.kill, os.getpid(), 15)",
            143,
            "it was killed by SIGTERM (exit status -15) after it had come to its end",
        ),
        ("1 / 0", 1, ""),
        ("import sys; sys.stdout = open('/dev/full', 'w'); print('lost')", 120, ""),
    ],
    ids=[
        "well",
        "exit",
        "killed",
        "os._exit(0)",
        "os._exit",
        "closes",
        "70",
        "killed at exit",
        "raises",
        "its output is lost",
    ],
)
def test_each_way_to_end(
    runner: FileRunner, tmp_path: Path, text: str, code: int, why: str
) -> None:
    answer = runner.run(_write(tmp_path / "program.py", text))
    assert (answer.returncode, why in answer.why) == (code, True), answer
    assert answer.elapsed > 0


def test_a_crash_and_a_hang_come_with_their_line(
    runner: FileRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash = _write(tmp_path / "crash.py", "import os\nos.abort()")
    answer = runner.run(crash)
    assert answer.returncode == 128 + signal.SIGABRT
    assert f'File "{crash}", line 2 in <module>' in answer.why
    assert "run_file.py" not in answer.why
    sign = tmp_path / "hangs"
    hang = _write(tmp_path / "hang.py", f"import time\nopen({str(sign)!r}, 'w'), time.sleep(10000)")
    leap_when(monkeypatch, sign.exists)
    answer = runner.run(hang, timeout=LIMIT)
    assert answer.returncode == 124
    assert "did not end within 600 s" in answer.why
    assert f'File "{hang}", line 2 in <module>' in answer.why


def test_threads_and_exit_functions_have_their_turn(runner: FileRunner, tmp_path: Path) -> None:
    text = (
        "import atexit, concurrent.futures, pathlib, threading, time\n"
        "here = pathlib.Path(__file__).parent\n"
        "def late():\n"
        "    time.sleep(0.1)\n"
        "    (here / 'thread').touch()\n"
        "concurrent.futures.ThreadPoolExecutor(2).submit(time.sleep, 0)\n"
        "threading.Thread(target=late).start()\n"
        "atexit.register(lambda: (here / 'exit').write_text(__name__))\n"
    )
    assert runner.run(_write(tmp_path / "program.py", text)).returncode == 0
    assert (tmp_path / "thread").exists()
    assert (tmp_path / "exit").read_text() == "__main__"


CHANGES = """
import os, sys, tempfile
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "inner"))
sys.path.append("/appended")
os.environ["SET_BY_CHANGES"] = "1"
os.environ.pop("TAKEN_BY_CHANGES", None)
os.umask(0o027)
kept = tempfile.TemporaryDirectory(dir=os.environ["FOLDERS"])
"""
FINDS = """
import os, sys
sys.path.append(os.environ["ROOT"])
import changes
inner = os.path.join(os.environ["ROOT"], "inner")
print(sys.path.index(inner), sys.path[1], "/appended" in sys.path)
print(os.environ.get("SET_BY_CHANGES"), os.environ.get("TAKEN_BY_CHANGES"), oct(os.umask(0)))
print(__import__("beside_changes").VALUE, os.path.isdir(changes.kept.name))
"""


def test_a_file_finds_what_preloaded_modules_have_changed_as_in_a_fresh_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    _write(tmp_path / "changes.py", CHANGES)
    _write(tmp_path / "inner" / "beside_changes.py", "VALUE = 42")
    finds = _write(tmp_path / "files" / "finds.py", FINDS)
    (tmp_path / "folders").mkdir()
    for name in ("TAKEN_BY_CHANGES", "ROOT", "FOLDERS"):
        monkeypatch.setenv(name, str(tmp_path / "folders" if name == "FOLDERS" else tmp_path))
    subprocess.run([sys.executable, finds], check=True)
    fresh = capfd.readouterr().out
    # the first entry is the worker's own: here that of `python -m`
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), *sys.path, str(tmp_path)])
    runner = FileRunner(["changes"], timeout=LIMIT)
    assert runner.start() is None
    assert [runner.run(finds).returncode for _ in range(2)] == [0, 0]
    runner.close()
    assert capfd.readouterr().out == 2 * fresh
    assert not list((tmp_path / "folders").iterdir())


def test_logs_that_a_handler_keeps_are_written_at_the_end(
    runner: FileRunner, tmp_path: Path
) -> None:
    text = (
        "import logging.handlers, pathlib\n"
        "target = logging.FileHandler(pathlib.Path(__file__).parent / 'log')\n"
        "logging.getLogger().addHandler(logging.handlers.MemoryHandler(100, target=target))\n"
        "logging.warning('kept')\n"
    )
    assert runner.run(_write(tmp_path / "program.py", text)).returncode == 0
    assert (tmp_path / "log").read_text() == "kept\n"


LOG = """
import os
log = open(os.path.join(os.environ["HELD"], "log"), "a")
log.write("by module")
"""
HOLDS_BACK = """
import atexit, gzip, os, pathlib, sys
import holds_log
def here(name): return pathlib.Path(os.environ["HELD"]) / name
text = open(here("text"), "w"); text.write("held")
data = open(here("data"), "wb"); atexit.register(data.write, b"held")
packed = gzip.open(here("packed"), "wt"); packed.write("held")
class Keeps: file = open(here("kept"), "w")
Keeps.me = Keeps(); Keeps.file.write("held")
holds_log.log.write(" by file")
"""


@pytest.mark.parametrize("hidden", [False, True])
def test_what_open_files_hold_back_is_written_at_the_end(
    hidden: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by Python, which is asked first."""
    program = _write(tmp_path / "files" / "program.py", HOLDS_BACK)
    _write(tmp_path / "holds_log.py", LOG)
    _write(tmp_path / "files" / f"{'decimal' if hidden else 'nothing'}.py", "")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    held = []
    for by_python in (True, False):
        folder = tmp_path / f"held by python {by_python}"
        folder.mkdir()
        monkeypatch.setenv("HELD", str(folder))
        if by_python:
            subprocess.run([sys.executable, program], check=True)
        else:
            runner = FileRunner(["holds_log", "decimal"], timeout=LIMIT)
            answer = runner.run(program)
            runner.close()
            assert answer.returncode == 0
            assert ("fresh interpreter" in answer.why) is hidden
        found = {one.name: one.read_bytes() for one in folder.iterdir()}
        held.append({**found, "packed": gzip.decompress(found["packed"])})
    names = ("data", "kept", "packed", "text")
    assert held[0] == {**dict.fromkeys(names, b"held"), "log": b"by module by file"}
    if hidden:  # the template's module has opened the log, too
        assert held[1].pop("log").startswith(b"by module")
        del held[0]["log"]
    assert held[1] == held[0]


def test_files_share_nothing_and_leave_nothing(runner: FileRunner, tmp_path: Path) -> None:
    first = (
        "import json, os, subprocess, sys, pathlib\n"
        "json.changed = True; os.environ['CHANGED'] = '1'; os.chdir('/')\n"
        "daemon = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "(pathlib.Path(__file__).parent / 'pid').write_text(str(daemon.pid))\n"
    )
    second = (
        "import json, os, random, sys\n"
        "assert not hasattr(json, 'changed') and 'CHANGED' not in os.environ\n"
        f"assert os.getcwd() == {os.getcwd()!r}, os.getcwd()\n"
        "assert sys.stdin.read() == ''\n"
        "open(__file__ + str(os.getpid()), 'w').write(str(random.random()))\n"
    )
    template = runner.template
    assert runner.run(_write(tmp_path / "a.py", first)).returncode == 0
    assert is_gone(int((tmp_path / "pid").read_text()))
    for _ in range(2):
        assert runner.run(_write(tmp_path / "b.py", second)).returncode == 0
    drawn = {file.read_text() for file in tmp_path.glob("b.py?*")}
    assert len(drawn) == 2
    assert runner.template == template


def test_a_file_that_could_not_import_its_neighbour_gets_a_fresh_interpreter(
    runner: FileRunner, tmp_path: Path
) -> None:
    # email is in no interpreter from the start; json, struct and threading are in each of ours, and
    # in each by a .pth file that imports them. No program can replace those, nor os or time.
    every = ("email", "json", "struct", "threading")
    listing = [sys.executable, "-c", "import sys; print(*sys.modules)"]
    loaded = subprocess.run(listing, check=True, capture_output=True, text=True).stdout.split()
    names = [name for name in every if name not in loaded]
    for name in (*every, "os", "time"):
        _write(tmp_path / f"{name}.py", "MINE = 1")
    text = (
        "import email, json, os, struct, sys, threading, time\n"
        "mine = [m for m in list(sys.modules) if hasattr(sys.modules[m], 'MINE')]\n"
        "open(__file__ + '.mine', 'w').write(' '.join(sorted(mine)))\n"
        "sys.exit(3)"
    )
    program = _write(tmp_path / "program.py", text)
    plain = subprocess.run([sys.executable, program], check=False, capture_output=True)
    seen = Path(f"{program}.mine")
    by_python = seen.read_text()
    seen.unlink()
    server = FileRunner(["email"])
    try:
        answer = server.run(program)
    finally:
        server.close()
    assert (answer.returncode, plain.returncode) == (3, 3), answer
    assert seen.read_text() == by_python == " ".join(names)
    assert "it ran in a fresh interpreter" in answer.why
    assert "email (" in answer.why
    assert "email" in names


def test_the_template_is_renewed_after_so_many_files_and_when_it_was_killed(
    tmp_path: Path,
) -> None:
    program = _write(tmp_path / "program.py", "")
    killer = _write(tmp_path / "killer.py", "import os; os.kill(os.getppid(), 9)")
    runner = FileRunner(renew_after=2)
    try:
        seen = []
        for _ in range(3):
            assert runner.run(program).returncode == 0
            seen.append(runner.template)
        assert seen[0] == seen[1] != seen[2]
        assert runner.run(killer).returncode == 137
        with pytest.warns(RuntimeWarning, match="the fork server was killed by SIGKILL"):
            answer = runner.run(program)
        assert answer.returncode == 0
    finally:
        runner.close()
    assert runner.template is None


def test_an_interrupt_is_the_files(runner: FileRunner, tmp_path: Path) -> None:
    text = (
        "import pathlib, time\n"
        "try:\n"
        "    pathlib.Path(__file__ + '.began').touch()\n"
        "    time.sleep(10000)\n"
        "finally:\n"
        "    pathlib.Path(__file__ + '.tidy').touch()\n"
    )
    program = _write(tmp_path / "program.py", text)
    began = tmp_path / "program.py.began"

    def press() -> None:
        wait_until(began.exists, "the file")
        runner.interrupt()

    thread = threading.Thread(target=press)
    thread.start()
    answer = runner.run(program)
    thread.join()
    assert answer.returncode == 130
    assert (tmp_path / "program.py.tidy").exists()
    runner.interrupt()  # nothing runs: nothing happens


def test_what_is_no_message_of_a_file_is_refused() -> None:
    with pytest.raises(frames.FrameError, match="no messages of kind 'end'"):
        runner_module._Said().take(messages.End(), [])


def test_trouble_outside_the_file_is_a_failure() -> None:
    said = runner_module._Said()
    assert said.take(messages.InternalError("no job"), []) is supervision.Said.MORE
    ending = supervision.Ending(0, False, False, False, "", "", 0.1)
    assert runner_module._result(ending, said, None) == (1, "it could not be run: no job")
    broken = supervision.Ending(0, False, False, False, "no frame", "", 0.1)
    code, why = runner_module._result(broken, runner_module._Said(), None)
    assert code == 1
    assert "(no frame)" in why
