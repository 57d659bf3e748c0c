"""What a session under test starts itself, forked from a server of the session's own."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.support import interpreter_servers, interpreters
from tests.support.isolation import is_gone

pytestmark = pytest.mark.slow

SHOW = "print(open('/proc/self/cmdline').read())"


@pytest.fixture(autouse=True)
def _with_servers(
    servers: interpreter_servers.Servers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(interpreters.FRESH, raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setattr(interpreters, "servers", lambda: servers)
    monkeypatch.setattr(interpreters, "CHILDREN_TOO", True)
    monkeypatch.chdir(tmp_path)


def said(code: str, fresh: str = "") -> str:
    """Return what code prints that runs at the start of a session."""
    start = "import os, subprocess, sys\ndef pytest_sessionstart():\n    exec(CODE, globals())\n"
    Path("conftest.py").write_text(f"CODE = {code!r}\n{start}")
    Path("test_it.py").write_text("def test_a(): pass\n")
    command = [sys.executable, "-m", "pytest", "-qs", "-p", "no:cacheprovider"]
    done = interpreters.run(command, timeout=120, fresh=fresh)
    assert done.returncode == 0, done.stdout + done.stderr
    return re.sub(r"passed in .*", "", done.stdout) + done.stderr


def both(code: str) -> str:
    """Return that, which is the same in a session that is fresh, as is all that it starts."""
    forked = said(code)
    assert forked == said(code, fresh="to compare")
    return forked


def forked(code: str) -> list[bool]:
    """Return of each command line that is printed whether it is that of a forked interpreter."""
    lines = [line for line in said(code).splitlines() if "\0" in line]
    return ["interpreter_server" in line for line in lines]


def start(*words: str, **options: str) -> str:
    """Return the code that runs Python and shows what came of it."""
    more = "".join(f", {name}={value}" for name, value in options.items())
    streams = "capture_output=True, text=True, stdin=subprocess.DEVNULL"
    run = f"done = subprocess.run([sys.executable, *{words!r}], {streams}{more})"
    return f"{run}; print(done.stdout, done.stderr, done.returncode)\n"


SURROUNDINGS = """
import os, signal, sys, threading, warnings
print(os.getcwd(), os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid(), os.umask(0o22))
print(os.getppid() == int(os.environ["SESSION"]))
of_readline = {"COLUMNS", "LINES"}  # it sets them in C, in the process that imports it
print(sorted({name for name in os.environ if name != "SESSION"} - of_readline))
with open("/proc/self/environ") as file:
    names = {one.partition("=")[0] for one in file.read().split("\\0") if one}
    print(sorted(names - of_readline))
print(sys.argv, sys.orig_argv, sys.path, sys.dont_write_bytecode, __name__)
for stream in (sys.stdin, sys.stdout, sys.stderr):
    print(stream.name, stream.mode, stream.line_buffering, stream.write_through, stream.fileno())
print([signal.getsignal(number) for number in sorted(signal.valid_signals())])
print(os.listdir("/proc/self/fd"), signal.pthread_sigmask(signal.SIG_BLOCK, []))
print([name for name in sys.modules if name.startswith(("tests", "pytest_cudafork", "conftest"))])
print(sys.stdin.read())
"""
STARTED = "os.environ['SESSION'] = str(os.getpid())\n"


@pytest.mark.parametrize("options", [(), ("-B",), ("-u",), ("-B", "-u")], ids=str)
def test_an_interpreter_finds_the_same_around_itself(options: tuple[str, ...]) -> None:
    text = both(STARTED + start(*options, "-c", SURROUNDINGS, "an argument"))
    assert "an argument" in text
    both(STARTED + start(*options, "-c", SURROUNDINGS, start_new_session="True"))
    assert forked(start(*options, "-c", SHOW)) == [True]


@pytest.mark.parametrize(
    "code",
    ["import sys; sys.exit(3)", "1 / 0", "import os; os.kill(os.getpid(), 9)", "syntax error"],
)
def test_it_ends_the_same(code: str) -> None:
    both(start("-c", code))


def test_descriptors_are_passed_under_their_numbers() -> None:
    told = "import os; print(os.read(7, 9), os.listdir('/proc/self/fd'))"
    begin = "one, other = os.pipe(); os.dup2(one, 7); os.write(other, b'text')\n"
    assert "b'text'" in both(begin + start("-c", told, pass_fds="[7]"))
    assert forked(begin + start("-c", SHOW, pass_fds="[7]")) == [True]


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "PYTHONHASHSEED", "COVERAGE_PROCESS_START"])
def test_what_a_fork_cannot_give_is_executed(name: str, tmp_path: Path) -> None:
    assert forked(start("-c", SHOW, env=f"{{**os.environ, {name!r}: '1'}}")) == [False]


@pytest.mark.parametrize(
    "options",
    [{"cwd": "'/'"}, {"preexec_fn": "int"}, {"close_fds": "False"}, {"umask": "2"}],
    ids=str,
)
def test_so_is_what_is_asked_for_in_another_way(options: dict[str, str]) -> None:
    assert forked(start("-c", SHOW, **options)) == [False]
    assert forked(start("-X", "dev", "-c", SHOW)) == [False]


def test_a_process_that_the_session_has_forked_executes() -> None:
    child = f"    {start('-c', SHOW)}    sys.stdout.flush()\n    os._exit(0)\n"
    assert forked(f"pid = os.fork()\nif pid == 0:\n{child}os.waitpid(pid, 0)\n") == [False]


def test_a_session_whose_server_has_died_executes() -> None:
    find = "(server,) = open(f'/proc/self/task/{os.getpid()}/children').read().split()\n"
    assert forked(find + "os.kill(int(server), 9)\n" + start("-c", SHOW)) == [False]


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), 9)"])
def test_the_server_ends_with_its_session(end: str) -> None:
    tell = "print('server', open(f'/proc/self/task/{os.getpid()}/children').read(), flush=True)\n"
    Path("conftest.py").write_text(f"import os\ndef pytest_sessionstart():\n    {tell}    {end}\n")
    command = [sys.executable, "-m", "pytest", "-qs"]
    done = interpreters.run(command, timeout=120)
    (found,) = re.findall(r"^server (\d+) *$", done.stdout, re.M)
    assert is_gone(int(found))


def test_only_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreters, "CHILDREN_TOO", False)
    assert forked(start("-c", SHOW)) == [False]
