"""``python -m pytest_cudafork run``: programs run as they would, and what they did is told."""

from __future__ import annotations

import json
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import pytest_cudafork
from pytest_cudafork.process.descendants import process_state
from tests.support.documents import read_document
from tests.support.native import compile_c, needs_libraries
from tests.support.programs import (
    FINDING,
    LIMIT,
    TOUCHES,
    TOUCHES_AND_FORKS,
    command,
    environment,
    plainly,
    wait_until,
    watched,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.fresh_interpreter("how an interpreter is started is what this is about"),
]

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a program and return its path."""

    def write(text: str, name: str = "prog.py") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_a_report_leaves_both_streams_as_they_are(tmp_path: Path, write: Write) -> None:
    write(TOUCHES_AND_FORKS)
    done = watched("--report", "r.json", "--json", "prog.py", cwd=tmp_path)
    assert (done.stdout, done.stderr, done.returncode) == ("out\n", "err\n", 3)
    told = read_document(tmp_path / "r.json", "run")
    assert [one["story"].split("\n")[0] for one in told["findings"]] == [FINDING]
    assert [(one["place"], one["verdict"]) for one in told["forks"]] == [("prog.py:16", "watched")]
    assert told["exit_status"] == 3
    assert told["not_observable"] == []
    assert list(tmp_path.glob("*ledger*")) == []


@pytest.mark.parametrize("taken", [0, 50])
def test_a_record_that_a_full_disk_cuts_or_refuses_is_told_and_fails_if_asked_for(
    taken: int, tmp_path: Path, write: Write
) -> None:
    """A limit of the size of files stands in for the full disk."""
    write(f"""
import ctypes, os, resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
size = os.path.getsize(os.environ["_CUDAFORK_LEDGER"]) + {taken}
resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
ctypes.CDLL("libcuda.so.1").cuInit(0)
""")
    for options, status in [((), 0), (("--fail",), 1)]:
        done = watched(*options, "prog.py", cwd=tmp_path)
        assert done.returncode == status, done.stderr
        assert "Traceback" not in done.stderr
        assert "could not write a record: is the disk full?" in done.stderr


def test_without_one_a_block_follows_the_programs_last_word(tmp_path: Path, write: Write) -> None:
    write(TOUCHES_AND_FORKS)
    done = watched("prog.py", cwd=tmp_path)
    assert (done.stdout, done.returncode) == ("out\n", 3)
    own, block, rest = done.stderr.partition("\nCUDA and fork (pytest-cudafork)\n")
    assert (own, bool(block)) == ("err\n", True)
    assert rest.splitlines()[2] == FINDING
    assert "prog.py: exited with status 3 after" in rest


def test_the_guard_refuses_the_fork_where_it_happens(tmp_path: Path, write: Write) -> None:
    write(TOUCHES_AND_FORKS)
    done = watched("--guard", "--report=r", "prog.py", cwd=tmp_path)
    assert done.returncode == 1
    assert 'prog.py", line 16, in <module>' in done.stderr
    assert "pytest_cudafork.CudaForkError: fork refused at prog.py:16" in done.stderr
    told = (tmp_path / "r").read_text()
    assert "fork refused at prog.py:16: CUDA was initialized at prog.py:8 (in touch)" in told
    assert "allow the module that forks: --allow MODULE" in told
    assert "is caught by its name: except CudaForkError." in told
    assert "pytest." not in told.replace("pytest-cudafork", "")
    once = watched("--guard", "prog.py", cwd=tmp_path).stderr
    assert once.count("what to do:") == 1
    error, _, block = once.partition("\nCUDA and fork (pytest-cudafork)\n")
    assert "what to do:" in error
    assert "fork refused at prog.py:16: CUDA was initialized at prog.py:8 (in touch)" in block
    assert "as above: told in full at the error that ended process" in block
    as_module = watched("--guard", "-m", "prog", cwd=tmp_path).stderr
    assert (as_module.count("what to do:"), "the error ended the process" in as_module) == (1, True)
    allowed = watched("--guard", "--allow=__main__", "--report=r", "prog.py", cwd=tmp_path)
    assert allowed.returncode == 3
    assert "prog.py:16: made, as its module is allowed to fork" in (tmp_path / "r").read_text()


def test_without_a_stderr_the_status_is_the_programs(tmp_path: Path, write: Write) -> None:
    write("raise SystemExit(3)")
    words = " ".join(map(shlex.quote, command("prog.py")))
    done = subprocess.run(
        ["sh", "-c", f"{words} 2>&-"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 3


def test_a_finding_is_an_exit_status_if_asked_for(tmp_path: Path, write: Write) -> None:
    program = write(TOUCHES_AND_FORKS.replace("exit(3)", "exit(0)"))
    assert watched(program, cwd=tmp_path).returncode == 0
    assert watched("--fail", program, cwd=tmp_path).returncode == 1
    clean = watched("--fail", write("pass", "clean.py"), cwd=tmp_path)
    assert clean.returncode == 0
    assert "no touch of CUDA was seen; watched: 1 Python process" in clean.stderr


SHOWS_ITSELF = """\
import json, os, sys
import pickle
print(json.dumps({
    "argv": sys.argv, "path": sys.path, "name": __name__, "file": __file__, "cwd": os.getcwd(),
    "flags": list(sys.flags), "xoptions": sorted(sys._xoptions.items()), "spec": bool(__spec__),
    "group": os.getpgrp() == os.getpgid(os.getppid()),
    "main": list(sys.modules["__main__"].__dict__),
}))
"""


def test_a_touch_that_is_not_written_when_the_program_ends_is_told_as_lost(
    tmp_path: Path, write: Write
) -> None:
    """A daemon thread ends with the process; here nothing takes what it has to write."""
    program = write(
        """\
import ctypes, os, threading
os.mkfifo("nobody-reads")
os.environ["_CUDAFORK_LEDGER"] = "nobody-reads"
touched = ctypes.PyDLL("libcuda.so.1").cudafork_touch_count
threading.Thread(target=ctypes.CDLL("libcuda.so.1").cuInit, args=(0,), daemon=True).start()
while not touched():
    pass
"""
    )
    done = watched("--fail", "--device=phantom", program, cwd=tmp_path)
    assert "not observable: a process of the session could not write a record" in done.stderr
    assert done.returncode == 1


def test_a_program_finds_itself_as_it_would(tmp_path: Path, write: Write) -> None:
    (tmp_path / "sub").mkdir()
    script = write(SHOWS_ITSELF, "sub/show.py")
    for words in ([script, "a", "--json"], ["-m", "sub.show", "-h"]):
        alone, seen = plainly(*words, cwd=tmp_path), watched("--report=r", *words, cwd=tmp_path)
        assert json.loads(seen.stdout) == json.loads(alone.stdout)
    options = ["-X", "dev", "-O", "-W", "ignore"]
    alone = plainly(*options, script, cwd=tmp_path)
    seen = plainly(*options, "-m", "pytest_cudafork", "run", "--report=r", script, cwd=tmp_path)
    assert json.loads(seen.stdout) == json.loads(alone.stdout)


ROOT = str(Path(pytest_cudafork.__file__).parent.parent)


def test_a_program_finds_its_path_as_it_is_where_the_plugin_is_on_it(
    tmp_path: Path, write: Write
) -> None:
    script = write("import sys; print(sys.path)", "show.py")
    path = os.pathsep.join([str(tmp_path / "before"), ROOT, str(tmp_path / "after")])
    env = environment(PYTHONPATH=path)
    alone = plainly(script, cwd=tmp_path, env=env)
    assert ROOT in alone.stdout
    assert watched("--report=r", script, cwd=tmp_path, env=env).stdout == alone.stdout


ENDS = {
    "os._exit": ("import os; os._exit(9)", 9),
    "signal": ("import os; os.kill(os.getpid(), 11)", -11),
    "sigkill": ("import os; os.kill(os.getpid(), 9)", -9),
    "exec": ("import os, sys; os.execv(sys.executable, ['python', 'next.py'])", 4),
    "no Python": ("#!/bin/sh\necho no", 1),
    "closes": (
        "import os; os.closerange(0, 4096); import ctypes\n"
        "ctypes.CDLL('libcuda.so.1').cuInit(0); os._exit(5)",
        5,
    ),
}
SEEN = {4: "next.py:1: script", 5: "prog.py:2: script"}
"""By exit status, which of them touch, and where."""


@pytest.mark.parametrize(("text", "status"), ENDS.values(), ids=ENDS)
def test_whatever_its_end_is_that_is_kept(
    tmp_path: Path, write: Write, text: str, status: int
) -> None:
    write("import ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0); raise SystemExit(4)", "next.py")
    done = watched("--report=r", write(text), cwd=tmp_path)
    assert done.returncode == status
    told = (tmp_path / "r").read_text()
    assert "watched: " in told
    assert (SEEN.get(status, "no touch of CUDA was seen") in told) or status == 1
    assert ("script" in told) is (status in SEEN)


def test_after_an_exec_the_program_before_is_blamed_for_nothing(
    tmp_path: Path, write: Write
) -> None:
    write(TOUCHES_AND_FORKS, "next.py")
    first = write(
        "import ctypes, os, sys\n"
        "ctypes.CDLL('libcuda.so.1').cuInit(0)\n"
        "os.execv(sys.executable, ['python', 'next.py'])\n"
    )
    for options, line in (([], FINDING), (["--guard"], "fork refused at next.py:16: CUDA was")):
        watched("--report=r", *options, first, cwd=tmp_path)
        story = (tmp_path / "r").read_text().split("also touched by:")
        assert line.replace("prog.py", "next.py") in story[0]
        assert "prog.py:2" not in story[0].split("\n", 2)[2]
        assert "prog.py:2: script" in story[1]


def test_what_is_not_there_is_said_as_ever(tmp_path: Path, write: Write) -> None:
    done, alone = watched("--report=r", "no.py", cwd=tmp_path), plainly("no.py", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, alone.stderr)
    assert (
        "not observable: the program, as there is no such file and nothing ran: a module is run by "
        "run -m MODULE, a program that is no Python script by run -- PROGRAM\n"
    ) in (tmp_path / "r").read_text()
    absent = watched("--", "nosuchprogram", cwd=tmp_path)
    assert absent.returncode == 127
    assert absent.stderr == "pytest-cudafork run: nosuchprogram: No such file or directory\n"
    write("text", "data")
    assert watched("--", "./data", cwd=tmp_path).returncode == 126
    wrong = watched("--nonsense", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "there is no option '--nonsense'" in wrong.stderr
    assert wrong.stderr.endswith("--help shows the options\n")
    full = watched("--report", tmp_path / "no" / "r", "prog.py", cwd=tmp_path)
    assert full.returncode == 2
    assert "--report: " in full.stderr
    assert watched("--help", cwd=tmp_path).stdout.startswith("usage: ")


@pytest.mark.parametrize("option", ["-I", "-S", "-E"])
def test_an_interpreter_without_its_start_up_runs_and_nothing_is_said_to_be_clean(
    tmp_path: Path, write: Write, option: str
) -> None:
    program = write("print('here')")
    done = watched("--fail", "--", sys.executable, option, program, cwd=tmp_path)
    assert (done.stdout, done.returncode) == ("here\n", 1)
    assert "nothing was watched" in done.stderr
    assert "not observable: the program's first process was not watched" in done.stderr


TOUCHES_IN_C = """\
#include <dlfcn.h>
#include <unistd.h>
#include <sys/wait.h>
int main(int count, char **words)
{
    int (*cuInit)(unsigned) = (int (*)(unsigned))dlsym(dlopen("libcuda.so.1", 1), "cuInit");
    cuInit(0);
    if (count > 1 && fork() == 0) {
        cuInit(0);
        _exit(0);
    }
    wait(0);
    return 0;
}
"""


@needs_libraries
def test_a_program_that_is_no_python_is_told_of_by_the_driver_and_its_children(
    tmp_path: Path, write: Write
) -> None:
    write("print('here')", "clean.py")
    shell = ["--", "sh", "-c"]
    done = watched("--fail", *shell, f"{sys.executable} clean.py; true", cwd=tmp_path)
    assert (done.stdout, done.returncode) == ("here\n", 0)
    assert "no touch of CUDA was seen; watched: 1 Python process\n" in done.stderr
    assert "not observable: forks of the program's first process, which is no P" in done.stderr
    unseen = watched("--fail", *shell, f"{sys.executable} -I clean.py; true", cwd=tmp_path)
    assert (unseen.stdout, unseen.returncode) == ("here\n", 1)
    assert "nothing was watched; watched: 0 Python processes" in unseen.stderr
    compile_c(TOUCHES_IN_C, tmp_path / "touch")
    touched = watched("--fail", "--", "./touch", cwd=tmp_path)
    assert touched.returncode == 0
    assert "cuInit called by touch (no Python stack could be had)" in touched.stderr
    poisoned = watched("--fail", "--", "./touch", "and fork", cwd=tmp_path)
    assert poisoned.returncode == 1
    assert "a forked child touched CUDA at unknown code" in poisoned.stderr


@pytest.mark.parametrize("flags", [["-i"], []], ids=["option", "variable"])
def test_a_program_that_is_to_be_asked_for_more_ends_as_ever(
    tmp_path: Path, write: Write, flags: list[str]
) -> None:
    write("import sys\nprint('out')\nsys.exit(3)\n")
    env = environment(**{} if flags else {"PYTHONINSPECT": "1"})
    run = ["-m", "pytest_cudafork", "run", "--report", "r.txt"]
    done = plainly(*flags, *run, "prog.py", cwd=tmp_path, env=env)
    plain = plainly(*flags, "prog.py", cwd=tmp_path, env=env)
    assert (done.stdout, done.stderr, done.returncode) == (
        plain.stdout,
        plain.stderr,
        plain.returncode,
    )


def test_a_program_that_is_run_by_a_watched_one_is_told_by_its_own_report(
    tmp_path: Path, write: Write
) -> None:
    write(TOUCHES_AND_FORKS)
    inner = [*command("--report", "inner.txt", "prog.py")]
    write(f"import subprocess\nsubprocess.run({inner!r})\n", "outer.py")
    told = watched("--report", "outer.json", "--json", "outer.py", cwd=tmp_path)
    assert told.returncode == 0
    assert FINDING in (tmp_path / "inner.txt").read_text(encoding="utf-8")
    outer = read_document(tmp_path / "outer.json", "run")
    (words,) = outer["not_observable"]
    assert words.startswith("what the program of `run` in process ")
    env = environment(PYTEST_CUDA_FORK_RUN=str(tmp_path / "by_variable.txt"))
    watched("--report", "inner.txt", "prog.py", cwd=tmp_path, env=env)
    wait_until(lambda: words[:34] in (tmp_path / "by_variable.txt").read_text(encoding="utf-8"))


STARTS_PROGRAMS = """\
import ctypes, os, subprocess
ctypes.CDLL("libcuda.so.1").cuInit(0)
os.spawnlp(os.P_WAIT, "true", "true")
subprocess.run(["true"], check=True, preexec_fn=lambda: None)
"""


def test_what_is_started_while_cuda_is_initialized_is_no_poisoned_child(
    tmp_path: Path, write: Write
) -> None:
    write(STARTS_PROGRAMS)
    told = watched("--guard", "prog.py", cwd=tmp_path)
    assert told.returncode == 0
    assert "touches: 1, forks while initialized: 0, poisoned children: 0, " in told.stderr
    write(STARTS_PROGRAMS.replace("None)", "ctypes.CDLL('libcuda.so.1').cuInit(0))"))
    told = watched("--guard", "prog.py", cwd=tmp_path)
    assert "poisoned children: 1, of which touched CUDA: 1" in told.stderr


def test_a_program_may_fork_a_thousand_times(tmp_path: Path, write: Write) -> None:
    program = write(
        "import os\n"
        "for _ in range(1000):\n"
        "    pid = os.fork()\n"
        "    pid or os._exit(0)\n"
        "    os.waitpid(pid, 0)\n"
    )
    done = watched("--fail", "--ledger=l", program, cwd=tmp_path)
    assert done.returncode == 0
    assert (tmp_path / "l").stat().st_size < 4096  # clean forks are nobody's business


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_program_that_becomes_another_user_is_still_seen(tmp_path: Path, write: Write) -> None:
    program = write(
        "import ctypes, os\n"
        "library = ctypes.CDLL('libcuda.so.1')\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "library.cuInit(0)\n"
    )
    done = watched("--fail", program, cwd=tmp_path, env=environment(TMPDIR="/tmp"))
    assert done.returncode == 0, done.stderr
    assert "prog.py:4: script" in done.stderr


def test_what_it_leaves_running_goes_on_and_is_named(tmp_path: Path, write: Write) -> None:
    program = write(
        "import os, signal, sys\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    os.closerange(0, 3)\n"
        "    signal.alarm(300)\n"
        "    signal.pause()\n"
        "os._exit(0)\n"
    )
    done = watched("--json", "--report=r", program, cwd=tmp_path)
    assert done.returncode == 0
    (running,) = json.loads((tmp_path / "r").read_text())["running"]
    assert "prog.py" in running["command"]
    os.kill(running["process"], signal.SIGKILL)  # it was still there


HANDLES = """\
import os, signal, sys, time
got = []
def handle(number, frame):
    got.append(number)
    os.write(1, b"got %d\\n" % number)
    if number == signal.SIGTERM:
        sys.exit(7)
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, handle)
os.write(1, b"%d\\n" % os.getpid())
while True:
    time.sleep(0.05)  # in signal.pause() it might wait for one that came just before
"""


def test_signals_are_passed_on(tmp_path: Path, write: Write) -> None:
    with subprocess.Popen(
        command("--report=r", write(HANDLES)),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        for number in (signal.SIGUSR1, signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            process.send_signal(number)
            assert process.stdout.readline() == b"got %d\n" % number
        assert process.wait(LIMIT) == 7
    assert "exited with status 7" in (tmp_path / "r").read_text()


def test_who_kills_the_command_kills_the_program(tmp_path: Path, write: Write) -> None:
    with subprocess.Popen(
        command("--report=r", write(HANDLES)),
        cwd=tmp_path,
        env=environment(TMPDIR=str(tmp_path)),
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        program = int(process.stdout.readline())
        process.kill()
    wait_until(lambda: not process_state.lives(program))


def test_a_terminal_stays_one_and_signals_once(tmp_path: Path, write: Write) -> None:
    program = write(HANDLES.replace('os.write(1, b"%d', 'print(os.isatty(0)); os.write(1, b"%d'))
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execve(sys.executable, command("--report=r", program), environment())
    try:
        text = _until(terminal, b"True\r\n")
        text = _until(terminal, b"\r\n", text.split(b"True\r\n")[1])  # its process
        os.write(terminal, b"\x03")
        text = _until(terminal, b"got 2\r\n", text)
        os.kill(pid, signal.SIGTERM)
        text = _until(terminal, b"got 15\r\n", text)
        assert text.count(b"got 2\r\n") == 1
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    finally:
        os.close(terminal)


def _until(terminal: int, words: bytes, text: bytes = b"") -> bytes:
    """Read a terminal up to some words."""
    while words not in text:
        ready, _, _ = select.select([terminal], [], [], LIMIT)
        assert ready, text
        text += os.read(terminal, 4096)
    return text


def test_one_variable_watches_what_others_start(tmp_path: Path, write: Write) -> None:
    program = write(TOUCHES_AND_FORKS)
    done = subprocess.run(
        [sys.executable, program],
        cwd=tmp_path,
        env=environment(PYTEST_CUDA_FORK_RUN="%p.json"),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("out\n", "err\n", 3)
    reports = list(tmp_path.glob("*.json"))
    assert len(reports) == 1  # its child is none that others have started
    wait_until(lambda: bool(reports[0].read_text()))
    told = json.loads(reports[0].read_text())
    assert [one["story"].split("\n")[0] for one in told["findings"]] == [FINDING]
    assert told["exit_status"] is None
    assert told["command"][1:] == [str(program)]


SLEEPS_AND_TOUCHES = """\
import ctypes, signal, subprocess, sys, time
time.sleep(1)
ctypes.CDLL("libcuda.so.1").cuInit(0)
assert (sys.stdout is None) == ("no streams" in sys.argv)
assert (signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN) == ("no children" in sys.argv)
"""


STARTS = {
    "no streams": lambda: os.closerange(0, 3),  # as a daemon is started
    "no children": lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),  # the kernel reaps them
}


@pytest.mark.parametrize("how", STARTS)
def test_the_variable_watches_a_program_however_it_is_started(
    how: str, tmp_path: Path, write: Write
) -> None:
    done = subprocess.run(
        [sys.executable, write(SLEEPS_AND_TOUCHES), how],
        cwd=tmp_path,
        env=environment(PYTEST_CUDA_FORK_RUN="report.json"),
        preexec_fn=STARTS[how],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    report = tmp_path / "report.json"
    wait_until(lambda: bool(report.read_text()))
    told = json.loads(report.read_text())
    assert [touch["call"] for touch in told["touches"]] == ["cuInit"]
    assert (told["seconds"] >= 1, told["not_observable"]) == (True, [])


FORBIDS = f"""\
{TOUCHES}\
def forbid(event, args):
    if event == EVENT:
        raise ERROR(event)
sys.addaudithook(forbid)
if os.fork() == 0:
    os._exit(0)
print(os.wait()[1])
"""


@pytest.mark.parametrize("error", ["PermissionError", "RuntimeError"])
@pytest.mark.parametrize("event", ["open", "ctypes.dlopen"])
def test_a_program_that_forbids_things_by_a_hook_of_the_audit_runs_as_it_would(
    event: str, error: str, tmp_path: Path, write: Write
) -> None:
    program = write(FORBIDS.replace("EVENT", repr(event)).replace("ERROR", error))
    alone = plainly(program, cwd=tmp_path)
    assert (alone.stdout, alone.stderr, alone.returncode) == ("0\n", "", 0)
    done = watched("--fail", "--report", "r.json", "--json", program, cwd=tmp_path)
    told = read_document(tmp_path / "r.json", "run")
    lost = event == "open"
    assert (done.stdout, done.stderr, done.returncode) == ("0\n", "", int(lost))
    assert (told["good"], len(told["forks"])) == (not lost, int(not lost))
    if lost:
        assert "or a hook of the audit has forbidden it" in told["not_observable"][0]


TELLS_ITS_DESCRIPTORS = f"""\
{TOUCHES}\
if os.fork() == 0:
    touch()
    os._exit(0)
os.wait()
file = os.open("found.txt", os.O_WRONLY | os.O_CREAT)
try:
    os.write(1, b"out")
except OSError as error:
    os.write(file, str(error).encode())
os.write(file, str(file).encode())
"""


@pytest.mark.parametrize("how", ["run", "variable"])
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_program_without_streams_has_no_file_of_ours_in_their_place(
    closed: str, how: str, tmp_path: Path, write: Write
) -> None:
    program = str(write(TELLS_ITS_DESCRIPTORS))
    found = []
    for words, variables in (
        ([sys.executable], {}),
        (command("--report", "r.txt"), {}) if how == "run" else
        ([sys.executable], {"PYTEST_CUDA_FORK_RUN": "r.txt"}),
    ):  # fmt: skip
        line = f"exec {shlex.join([*words, program])} {closed}"
        env = environment(**variables)
        done = subprocess.run(
            ["/bin/sh", "-c", line],
            cwd=tmp_path,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT,
            check=True,
        )
        found.append((done.stdout, done.stderr, (tmp_path / "found.txt").read_text()))
    assert found[0] == found[1]
    report = tmp_path / "r.txt"
    wait_until(lambda: "a forked child touched CUDA at prog.py:8" in report.read_text())


def test_a_session_with_the_check_is_said_to_tell_of_itself(tmp_path: Path, write: Write) -> None:
    write(
        "import ctypes, os\ndef test_touch():\n    ctypes.CDLL('libcuda.so.1').cuInit(0)\n",
        "test_it.py",
    )
    words = ("-m", "pytest", "-p", "no:cacheprovider", "-q", "test_it.py")
    env = environment(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1", PYTEST_PLUGINS="pytest_cudafork.plugin")
    for check, touches, unseen in (("poison", 0, 1), ("off", 1, 0)):
        env["PYTEST_CUDA_FORK_CHECK"] = check
        done = watched("--report", "r.json", "--json", *words, cwd=tmp_path, env=env)
        assert done.returncode == 0, done.stdout + done.stderr
        told = json.loads((tmp_path / "r.json").read_text())
        assert len(told["touches"]) == touches
        assert len(told["not_observable"]) == unseen
        assert not unseen or "and tells of that itself" in told["not_observable"][0]
