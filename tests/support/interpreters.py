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

With ``CHILDREN_TOO`` a session that is forked has the interpreters that it starts itself forked as
well, on the same terms, from a server of its own (``interpreter_nested.py``): its children by
spawn, its fork server, the workers of pytest-xdist. ``tests/sessions`` asks for
that, but where a test is marked ``fresh_children``.

Sessions of pytest are started without the plugins of hypothesis, anyio and platformdirs, unless
fresh interpreters are asked for: to load them takes longer than all else together, and each process
that a session starts for its tests loads them again.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.interpreter_child import Child
from tests.support.interpreter_environment import surroundings
from tests.support.interpreter_programs import program_of, without_slow_plugins
from tests.support.interpreter_servers import servers

FRESH = "FRESH_INTERPRETERS"
"""Environment variable; what it is set to is the reason for fresh interpreters."""

CHILDREN_TOO = False
"""Whether a session is given a server for the interpreters that it starts itself."""

_LINUX = sys.platform == "linux"
_starting = threading.Lock()
"""A child of another thread would be taken for one of somebody else's, and reaped."""


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
        command = without_slow_plugins(command)
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
    around = surroundings(new_session=start_new_session)
    if program is not None and not fresh and _LINUX and around is not None:
        request = {
            **around,
            "kind": program.kind,
            "what": program.what,
            "args": program.args,
            "command": list(command),
            "environ": environ,
            "cwd": os.fspath(cwd or os.getcwd()),
            "nested": CHILDREN_TOO and (program.kind, program.what) == ("-m", "pytest"),
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
