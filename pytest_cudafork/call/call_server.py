"""Owns the fork server of ``run_forkserver``: a clean process, started by exec, that forks.

It runs in that process, imports nothing of the parent side, and does not know what its children
do. It imports little, so that its children begin with nothing; whole tests have a server of their
own that has imported what they need (``zygote.py``).

The control socket (``SOCK_SEQPACKET``) carries one request and one reply at a time:
``fork`` with the descriptors in the order of ``_FDS`` -> ``pid N`` or ``error TEXT``;
``reap N`` -> ``exit CODE`` (negative: signal). A dead child stays a zombie until it is reaped, so
that its number cannot be given to another process before the parent has ended its group.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
from typing import NoReturn

from pytest_cudafork.process import child

_FDS = ("channel", "request", "stacks", "cwd", "stdout", "stderr")
_LONGEST_REQUEST = 4096
_CHECK_PARENT_MS = 1000


def serve(control_fd: int, parent_pid: int, cookie: str) -> NoReturn:
    """Serve requests until the parent closes its end or dies, then end every child and itself.

    What does not begin with the cookie is no request: a child that was forked from the parent has
    the other end of the connection too, and may write to any descriptor.
    """
    os.set_inheritable(control_fd, False)
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)  # Ctrl-C is the parent's business
    control = socket.socket(fileno=control_fd)
    children: set[int] = set()
    control.send(b"ready")
    poller = select.poll()
    poller.register(control, select.POLLIN)
    while os.getppid() == parent_pid:
        if not poller.poll(_CHECK_PARENT_MS):
            continue
        try:
            data, fds, _, _ = socket.recv_fds(control, _LONGEST_REQUEST, len(_FDS))
        except ConnectionError:
            break
        if not data:
            break
        word, _, request = data.decode("utf-8", "replace").partition(" ")
        if word != cookie:
            for fd in fds:
                os.close(fd)
            continue
        reply = _answer(control, request, fds, children)
        with contextlib.suppress(OSError):  # the parent is gone; the next round sees it
            control.send(reply.encode())
    for pid in children:
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
    os._exit(0)


def _answer(control: socket.socket, request: str, fds: list[int], children: set[int]) -> str:
    """Do one request and return the reply."""
    try:
        if request == "fork" and len(fds) == len(_FDS):
            pid = _fork(control, fds)
            children.add(pid)
            return f"pid {pid}"
        verb, _, number = request.partition(" ")
        if verb == "reap" and int(number) in children:
            _, status = os.waitpid(int(number), 0)
            children.discard(int(number))
            return f"exit {os.waitstatus_to_exitcode(status)}"
        return f"error no such request: {request!r} with {len(fds)} descriptors"
    except (OSError, ValueError) as error:
        return f"error {type(error).__name__}: {error}"
    finally:
        for fd in fds:
            os.close(fd)


def _fork(control: socket.socket, fds: list[int]) -> int:
    """Fork one child; in the child, do the request and never return."""
    pid = os.fork()
    if pid:
        with contextlib.suppress(OSError):  # the child may have done it, or be gone
            os.setpgid(pid, pid)
        return pid
    try:
        control.close()
        _become(dict(zip(_FDS, fds, strict=True)))
    finally:
        os._exit(child.EXIT_LOST)


def _become(fds: dict[str, int]) -> NoReturn:
    """Take over the surroundings of the requesting process and run its request."""
    os.dup2(fds["stdout"], 1)
    os.dup2(fds["stderr"], 2)
    os.fchdir(fds["cwd"])
    for name in ("stdout", "stderr", "cwd"):
        os.close(fds[name])
    surroundings = child.read_request(os.dup(fds["request"]))
    os.umask(surroundings["umask"])
    os.environ.clear()
    for key, value in surroundings["environ"].items():
        os.environb[key] = value
    child.run_request(fds["channel"], fds["request"], fds["stacks"])


def main() -> NoReturn:
    """Start from the command line: control descriptor, the parent's process id, the cookie."""
    serve(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
