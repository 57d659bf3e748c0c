"""Has a session under test fork the interpreters that it starts, from a server of its own.

``interpreter_server.py`` uses it, and so it imports nothing of this repository. The server of a
session is forked from it before the session begins, and is as clean. What the session starts by
``subprocess`` is then forked from that: its children that are to be fresh interpreters, its fork
server, and the workers of pytest-xdist. It is exec'd as ever where it has other options than these
two, an environment that differs in what is read at start, another working directory, or whatever
else a fork could not give it; and where a process asks that the session has forked.
"""

from __future__ import annotations

import ctypes
import fcntl
import inspect
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

OPTIONS = frozenset({"-B", "-u"})
MOST_FDS = 16

_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
_FIRST_NUMBER = 200  # of the socket; lower ones are given to the session as ever
_LONGEST_REQUEST = 100_000
# What Popen is told in so many ways, and what it must have been told.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "preexec_fn": (None,),
    "close_fds": (True,),
    "shell": (False,),
    "process_group": (None, -1),
    "umask": (None, -1),
    **dict.fromkeys(("gid", "gids", "uid"), (None, -1)),
}


class Nested:
    """Stands for ``Popen._execute_child`` in a session.

    Args:
        environment: The module ``interpreter_environment``, as the server has imported it.

    """

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self._original: Any = subprocess.Popen._execute_child  # type: ignore[attr-defined]
        self._signature = inspect.signature(self._original)
        self._prctl = ctypes.CDLL(None).prctl
        self._lock = threading.Lock()
        self._control: Any = None
        self._owner = 0
        self._cwd = ""
        self._started: Mapping[str, str] = {}

    def take_over(self, control: socket.socket, request: Mapping[str, Any]) -> None:
        """Begin in a session that was asked for so; the server is at the other end."""
        number = fcntl.fcntl(control.fileno(), fcntl.F_DUPFD_CLOEXEC, _FIRST_NUMBER)
        control.close()
        self._control = socket.socket(fileno=number)
        self._owner = os.getpid()
        self._cwd = request["cwd"]
        self._started = self._settings(request["environ"])

        def execute(popen: Any, *args: Any, **options: Any) -> None:
            given = self._signature.bind(popen, *args, **options).arguments
            pid = self._fork(given)
            if pid is None:
                self._original(popen, *args, **options)
                return
            popen.pid = pid
            popen._child_created = True
            names = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
            popen._close_pipe_fds(*(given[name] for name in names))

        subprocess.Popen._execute_child = execute  # type: ignore[attr-defined]

    def _settings(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return what the session was started with that its interpreters must have as well."""
        names = ("PYTHONPATH", *self._environment.VARIANTS)
        same = {name: environ[name] for name in names if name in environ}
        return {**self._environment.read_at_start(environ), **same}

    def _fork(self, given: Mapping[str, Any]) -> int | None:
        """Return the process id of a new child; None if it must be a fresh interpreter."""
        if os.getpid() != self._owner or not self._is_plain(given):
            return None
        environ = dict(os.environ if given["env"] is None else given["env"])
        around = self._environment.surroundings(new_session=bool(given["start_new_session"]))
        request = self._request(list(map(os.fspath, given["args"])), environ)
        streams = (given["p2cread"], given["c2pwrite"], given["errwrite"])
        own = [number if fd == -1 else fd for number, fd in enumerate(streams)]
        kept = sorted(map(int, given["pass_fds"]))
        if request is None or around is None:
            return None
        if len(kept) > MOST_FDS - 3 or min(kept, default=3) < 3:
            return None
        data = json.dumps({**request, **around, "fds": [0, 1, 2, *kept]}).encode()
        if len(data) > _LONGEST_REQUEST:
            return None
        sys.audit("subprocess.Popen", given["args"][0], given["args"], given["cwd"], given["env"])
        with self._lock:
            return self._ask(data, [*own, *kept])

    def _is_plain(self, given: Mapping[str, Any]) -> bool:
        """Whether nothing is asked for that only an exec can give."""
        if os.fspath(given["cwd"] or os.getcwd()) != self._cwd:
            return False
        usual = all(given[name] in values for name, values in _PLAIN.items() if name in given)
        words = given["args"]
        listed = isinstance(words, (list, tuple)) and words[0] == sys.executable
        return usual and listed and given["executable"] in (None, sys.executable)

    def _request(self, command: list[str], environ: dict[str, str]) -> dict[str, Any] | None:
        """Return what is to be asked for; None if a fork is not as good as an exec."""
        words = command[1:]
        options = set()
        while words and words[0] in OPTIONS:
            options.add(words.pop(0))
        if len(words) < 2 or words[0] != "-c":
            return None
        if not all(isinstance(one, str) for pair in environ.items() for one in pair):
            return None
        if self._settings(environ) != self._started:
            return None
        return {
            "kind": "-c",
            "what": words[1],
            "args": words[2:],
            "command": command,
            "options": sorted(options),
            "environ": environ,
            "cwd": self._cwd,
        }

    def _ask(self, data: bytes, fds: list[int]) -> int | None:
        before = ctypes.c_int()
        self._prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
        self._prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            socket.send_fds(self._control, [data], fds)
            answer = self._control.recv(_LONGEST_REQUEST)
        except OSError:
            return None
        finally:
            self._prctl(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)
        return int(answer.removeprefix(b"pid ")) if answer.startswith(b"pid ") else None
