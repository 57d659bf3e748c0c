"""Runs Python in processes of its own, mostly forked from a server instead of started anew.

To start Python and import pytest takes an eighth of a second, with torch a second and a half, and
the tests do it some thousand times. ``start`` and ``run`` take the command that ``subprocess``
would take. Where the command is one that a server can run (``interpreter_server.py``) and nothing
speaks against it, the process is forked from a server of this test process; otherwise it is started
by exec. Either way it is a child of the test process, in its process group, and ends as the
command says: a test need not know which it was.

A fresh interpreter is taken when

- the variable ``FRESH_INTERPRETERS`` is set: ``make test-fresh`` does so, and a test or a helper
  that gives a reason (``@pytest.mark.fresh_interpreter("reason")``, ``fresh="reason"``);
- the command has options for the interpreter, or is another interpreter's;
- the environment differs from that of the test process in what is read at start;
- a module of the working directory or of ``PYTHONPATH`` would take the place of one that the server
  has imported, or be imported at start;
- the server cannot be had: it does not start, is not clean, or died twice.

Sessions of pytest are started without the plugins of hypothesis, anyio and platformdirs, unless
fresh interpreters are asked for: to load them takes longer than all else together, and each process
that a session starts for its tests loads them again.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import itertools
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

FRESH = "FRESH_INTERPRETERS"
"""Environment variable; what it is set to is the reason for fresh interpreters."""

_READ_AT_START = re.compile(
    "PYTHON|LD_|LC_|LANG|TZ$|MALLOC_|GLIBC_|COV|OMP_|KMP_|MKL_|GOMP_|OPENBLAS|TORCH|PYTORCH_|CUDA|NVIDIA_"
)
# The path is put together anew in each child, and so is whether bytecode is written.
_TAKEN_OVER = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
# A server is started for each combination that is asked for again and again; with those of the test
# process one is started at once.
_VARIANTS = ("PYTHONHASHSEED", "PYTHONUNBUFFERED")
_WORTH_A_SERVER = 2
_MOST_SERVERS = 6
_START_SECONDS = 120.0
_ANSWER_SECONDS = 120.0
_LONGEST_REQUEST = 100_000
_ROOM = 16_000  # bytes; for what the environment of a child may have more
_PR_SET_CHILD_SUBREAPER = 36
_SCRIPT = Path(__file__).with_name("interpreter_server.py")
_IMPORTED = frozenset(sys.stdlib_module_names) | {
    *("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "exceptiongroup"),
    *("cloudpickle", "filelock", "sitecustomize", "usercustomize"),
}
# The names of their entry points.
_LEFT_OUT = ("-pno:hypothesispytest", "-pno:anyio", "-pno:platformdirs")
_ENDINGS = ("", "py", "so")  # of packages, which are folders, and modules
_MOST_FILES = 50
_LINUX = sys.platform == "linux"
_starting = threading.Lock()
"""A child of another thread would be taken for one of somebody else's, and reaped."""


class Child:
    """A child process that was forked from a server; to be used as a ``subprocess.Popen``."""

    def __init__(self, args: Sequence[str], pid: int) -> None:
        self.args = args
        self.pid = pid
        self.returncode: int | None = None
        self.stdin: IO[Any] | None = None

    def poll(self) -> int | None:
        """Return the exit code if the process has ended; negative: the signal."""
        return self._reap(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code.

        Raises:
            subprocess.TimeoutExpired: It did not end in time.

        """
        if self.returncode is None and timeout is not None:
            pidfd = os.pidfd_open(self.pid)
            try:
                poller = select.poll()
                poller.register(pidfd, select.POLLIN)
                if not poller.poll(timeout * 1000):
                    raise subprocess.TimeoutExpired(list(self.args), timeout)
            finally:
                os.close(pidfd)
        code = self._reap(0)
        assert code is not None, "it was waited for"
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, if the process has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask the process to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the process."""
        self.send_signal(signal.SIGKILL)

    def _reap(self, flags: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, flags)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


@dataclass(frozen=True)
class Program:
    """What a command runs: ``-m`` a module, ``-c`` a text, or ``""`` a script."""

    kind: str
    what: str
    args: tuple[str, ...]


def program_of(command: Sequence[str]) -> Program | None:
    """Return what a command runs; None if it is not this Python without options."""
    if len(command) < 2 or command[0] != sys.executable:
        return None
    first, rest = command[1], command[2:]
    if first in ("-m", "-c"):
        return Program(first, rest[0], tuple(rest[1:])) if rest else None
    if first.startswith("-m"):
        return Program("-m", first[2:], tuple(rest))
    return None if first.startswith("-") else Program("", first, tuple(rest))


def _without_slow_plugins(command: Sequence[str]) -> Sequence[str]:
    program = program_of(command)
    if program is None or (program.kind, program.what) != ("-m", "pytest"):
        return command
    return [command[0], "-m", "pytest", *_LEFT_OUT, *program.args]


class Server:
    """One server process; it ends with this process, or when it is closed."""

    def __init__(self, environ: Mapping[str, str], put_away: Sequence[str]) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(_SCRIPT), str(theirs.fileno()), *put_away],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**environ, "ROOM": "x" * _ROOM},
            )
        self._control.settimeout(_START_SECONDS)
        self._wait_until_ready = True
        self.adopted: set[int] = set()
        """Processes of others that lost their parent at a wrong moment and got this one instead."""

    @property
    def pid(self) -> int:
        """The number of its process."""
        return self._process.pid

    def fork(self, request: Mapping[str, Any], fds: Sequence[int]) -> int:
        """Return the process id of a new child of this process that does what is requested.

        Raises:
            OSError: The server is gone, or cannot do it.

        """
        if self._wait_until_ready:
            self._expect(b"ready")
            self._control.settimeout(_ANSWER_SECONDS)
            self._wait_until_ready = False
        before, pid = _children(), 0
        _become_subreaper(True)
        try:
            socket.send_fds(self._control, [json.dumps(request).encode()], fds)
            pid = int(self._expect(b"pid "))
            return pid
        finally:
            _become_subreaper(False)
            self.adopted |= _children() - before - {pid}

    def reap_adopted(self) -> None:
        """Let go of those that have ended; nobody else would."""
        for pid in list(self.adopted):
            try:
                reaped, _ = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:  # somebody has waited for any child
                reaped = pid
            if reaped:
                self.adopted.discard(pid)

    def close(self) -> None:
        """End the process."""
        self.reap_adopted()
        self._control.close()
        self._process.kill()
        self._process.wait()

    def _expect(self, word: bytes) -> bytes:
        answer = self._control.recv(_LONGEST_REQUEST)
        if not answer.startswith(word):
            raise OSError(f"the server of interpreters: {answer.decode() or 'is gone'}")
        return answer.removeprefix(word)


def _become_subreaper(yes: bool) -> None:
    """Become the parent of descendants that lose theirs, or no longer.

    Only for the moment in which a server hands over its child: what a test leaves behind shall go
    to where it goes always.
    """
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0):
        raise OSError("prctl(PR_SET_CHILD_SUBREAPER) failed")


def _children() -> set[int]:
    """Return the children of this process, of all its threads."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(
            OSError
        ):  # a thread that has ended, or a kernel that tells nothing
            found.update(map(int, (task / "children").read_text().split()))
    return found


class Servers:
    """The servers of this process, by what they have imported and their variant of environment."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._environ = dict(os.environ)
        self._servers: dict[tuple[str, ...], Server] = {}
        self._asked: dict[tuple[str, ...], int] = {}
        self._deaths = 0

    def fork(self, program: Program, request: dict[str, Any], fds: Sequence[int]) -> int | None:
        """Return the process id of a new child; None if it must be a fresh interpreter."""
        environ = request["environ"]
        if os.getpid() != self._owner or not self._same_start(environ):
            return None
        if len(json.dumps(request)) > _LONGEST_REQUEST or _hides_imported(program, request):
            return None
        with_torch = _torch_can_be_imported() and _mentions_torch(program, request["cwd"])
        variant = [
            f"{name}={_setting(environ, name)}"
            for name in _VARIANTS
            if _setting(environ, name) != _setting(self._environ, name)
        ]
        key = ("torch" if with_torch else "", *variant)
        for _ in range(2):
            server = self._server(key)
            if server is None:
                return None
            try:
                return server.fork(request, fds)
            except OSError:
                self._deaths += 1
                self._servers.pop(key).close()
        return None

    def reap_adopted(self) -> None:
        """Let go of processes of others that have become children of this one and have ended."""
        if os.getpid() == self._owner:
            for server in self._servers.values():
                server.reap_adopted()

    def running(self) -> list[Server]:
        """Return the servers that were started and are not known to have died."""
        return list(self._servers.values())

    def close(self) -> None:
        """End the servers."""
        if os.getpid() == self._owner:
            for server in self._servers.values():
                server.close()
            self._servers.clear()

    def _server(self, key: tuple[str, ...]) -> Server | None:
        if key not in self._servers:
            self._asked[key] = self._asked.get(key, 0) + 1
            full = len(self._servers) >= _MOST_SERVERS or self._deaths > 10
            is_variant = len(key) > 1
            if full or (is_variant and self._asked[key] < _WORTH_A_SERVER):
                return None
            environ = {k: v for k, v in self._environ.items() if k not in _TAKEN_OVER}
            environ |= dict(one.split("=", 1) for one in key[1:])
            self._servers[key] = Server(environ, ["numpy", "torch"] if key[0] else [])
        return self._servers[key]

    def _same_start(self, environ: Mapping[str, str]) -> bool:
        return read_at_start(environ) == read_at_start(self._environ)


def _setting(environ: Mapping[str, str], name: str) -> str:
    """Return the value of a variable, "" if it is as good as not set."""
    value = environ.get(name, "")
    return "" if (name, value) == ("PYTHONHASHSEED", "random") else value


def read_at_start(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that an interpreter or a library reads when it starts.

    Those are not among them that a server can give to its child, or that it was started with.
    """
    free = (*_TAKEN_OVER, *_VARIANTS)
    return {k: v for k, v in environ.items() if _READ_AT_START.match(k) and k not in free}


class Environment:
    """The environment as it is now, to be had back in what is read at start."""

    def __init__(self) -> None:
        self._raw = _raw_environment()

    def restore(self) -> None:
        """Undo what has become of the variables that are read at start."""
        if self._raw == _raw_environment():
            return  # as after nearly all tests; there are ten thousand
        before = read_at_start({os.fsdecode(k): os.fsdecode(v) for k, v in self._raw.items()})
        for name in read_at_start(os.environ).keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def _raw_environment() -> dict[bytes, bytes]:
    """Return what ``os.environ`` holds, without decoding each name and value if that can be."""
    raw = dict(getattr(os.environ, "_data", os.environb))
    raw.pop(b"PYTEST_CURRENT_TEST", None)  # another one in each phase of a test
    return raw


def _hides_imported(program: Program, request: Mapping[str, Any]) -> bool:
    """Whether a file on the child's path comes before a module that the server has imported."""
    first = os.path.dirname(os.path.join(request["cwd"], program.what)) if not program.kind else ""
    folders = [first or ".", *request["environ"].get("PYTHONPATH", "").split(os.pathsep)]
    for folder in filter(None, folders):
        try:
            names = os.listdir(os.path.join(request["cwd"], folder))
        except OSError:
            continue
        modules = (name.partition(".") for name in names)
        if any(name in _IMPORTED and ending in _ENDINGS for name, _, ending in modules):
            return True
    return False


def _mentions_torch(program: Program, cwd: str) -> bool:
    """Whether the child is likely to import torch; a wrong guess costs time, no more."""
    if "torch" in " ".join([program.what, *program.args]):
        return True
    files = [Path(cwd, program.what)] if program.kind == "" else []
    for file in itertools.chain(files, itertools.islice(Path(cwd).rglob("*.py"), _MOST_FILES)):
        try:
            if b"torch" in file.read_bytes():
                return True
        except OSError:
            continue
    return False


@functools.cache
def _torch_can_be_imported() -> bool:
    """Whether torch is here, is a build for the CPU, and is best imported ahead.

    A build for GPUs would load the driver, and what loads it is what many tests are about.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None or os.path.exists("/dev/nvidiactl"):
        return False
    version = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    return re.search(r"^cuda\b.*= None$", version, re.MULTILINE) is not None


@functools.cache
def servers() -> Servers:
    """Return the servers of this process; they start when they are needed."""
    return Servers()


def start(
    command: Sequence[str],
    *,
    stdin: int,
    stdout: int,
    stderr: int,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    start_new_session: bool = False,
    fresh: str = "",
) -> subprocess.Popen[bytes] | Child:
    """Start a command; the streams are descriptors. Close your own after that.

    Args:
        command: As for ``subprocess.Popen``.
        stdin: Descriptor of what it reads, likewise ``stdout`` and ``stderr``.
        stdout: See ``stdin``.
        stderr: See ``stdin``.
        cwd: Its working directory instead of this process's.
        env: Its environment instead of this process's.
        start_new_session: Whether it leads a session of its own.
        fresh: The reason why it has to be a fresh interpreter, if there is one.

    """
    environ = dict(os.environ if env is None else env)
    fresh = fresh or os.environ.get(FRESH, "")
    if not fresh:
        command = _without_slow_plugins(command)
    with _starting:
        streams = (stdin, stdout, stderr)
        return _start(command, streams, cwd, environ, fresh, start_new_session=start_new_session)


def _start(
    command: Sequence[str],
    streams: tuple[int, int, int],
    cwd: str | os.PathLike[str] | None,
    environ: dict[str, str],
    fresh: str,
    *,
    start_new_session: bool,
) -> subprocess.Popen[bytes] | Child:
    program = program_of(command)
    group = os.getpgid(0)
    # 0: a group outside of this namespace of processes, which no other process here can join
    joined = start_new_session or group != 0
    if program is not None and not fresh and _LINUX and joined:
        umask = os.umask(0o077)
        os.umask(umask)
        request = {
            "kind": program.kind,
            "what": program.what,
            "args": program.args,
            "command": list(command),
            "environ": environ,
            "cwd": os.fspath(cwd or os.getcwd()),
            "umask": umask,
            "group": group,
            "new_session": start_new_session,
        }
        pid = servers().fork(program, request, streams)
        if pid is not None:
            return Child(command, pid)
    environ.pop(FRESH, None)
    return subprocess.Popen(
        list(command),
        stdin=streams[0],
        stdout=streams[1],
        stderr=streams[2],
        cwd=cwd,
        env=environ,
        start_new_session=start_new_session,
    )


def run(
    command: Sequence[str],
    *,
    timeout: float,
    merge: bool = False,
    errors: str = "strict",
    start_new_session: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """Run a command that reads nothing, and return what it wrote, as ``subprocess.run`` does.

    Args:
        command: As for ``subprocess.run``.
        timeout: Seconds. After that it is killed, and with it its session if it leads one.
        merge: Whether both streams are written to standard output, in the order of writing.
        errors: What becomes of bytes that are not UTF-8, as for ``bytes.decode``.
        start_new_session: See ``start``.
        **options: See ``start``.

    Raises:
        subprocess.TimeoutExpired: It did not end in time, or what it started kept the streams open.

    """
    out, out_theirs = os.pipe()
    err, err_theirs = os.pipe()
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        process = start(
            command,
            stdin=nothing,
            stdout=out_theirs,
            stderr=out_theirs if merge else err_theirs,
            start_new_session=start_new_session,
            **options,
        )
    finally:
        for fd in (out_theirs, err_theirs, nothing):
            os.close(fd)
    try:
        until = time.monotonic() + timeout
        written = _read_to_the_end([out, err], until)
        if written is None:
            raise subprocess.TimeoutExpired(list(command), timeout)
        process.wait(max(0.0, until - time.monotonic()))
    except BaseException:
        process.kill()
        if start_new_session:
            # What a server forks becomes the leader of its session a moment later, or does not.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    finally:
        os.close(out)
        os.close(err)
    texts = [text.decode("utf-8", errors) for text in written]
    code = process.wait()
    return subprocess.CompletedProcess(list(command), code, *texts)


def _read_to_the_end(fds: Sequence[int], until: float) -> list[bytes] | None:
    """Return what can be read from each descriptor; None if that takes too long."""
    read: dict[int, list[bytes]] = {fd: [] for fd in fds}
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    open_fds = set(fds)
    while open_fds:
        ready = poller.poll(max(0.0, until - time.monotonic()) * 1000)
        if not ready:
            return None
        for fd, _ in ready:
            data = os.read(fd, 1 << 16)
            read[fd].append(data)
            if not data:
                poller.unregister(fd)
                open_fds.discard(fd)
    return [b"".join(read[fd]) for fd in fds]
