"""Owns the template's process as its parent sees it: asking for modules, and their records.

It does not know which modules there are, nor what is done with the records.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_cudafork.imports import verdicts
from pytest_cudafork.imports.records import ImportRecord, Verdict
from pytest_cudafork.imports.settings import AuditSettings
from pytest_cudafork.isolate import crash, last_words, launch, leftovers
from pytest_cudafork.isolate.wire import new_cookie
from pytest_cudafork.observe.ledger import Ledger, LedgerReader
from pytest_cudafork.observe.touch import Touch

_READ_BYTES = 1 << 20
_MOST_STARTS = 4
_END_SECONDS = 10.0
_MOST_TEXT = 4000
_OWN_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_PATHS = ("PYTHONPATH", "LD_LIBRARY_PATH", "TRITON_LIBCUDA_PATH")


class Auditor:
    """Imports modules in processes of their own, through one template that is restarted if lost."""

    def __init__(self, package: str, settings: AuditSettings, preloads: Sequence[str] = ()) -> None:
        self._package = package
        self._settings = settings
        self._preloads = list(preloads)
        self._records: dict[str, ImportRecord] = {}
        self._asked: list[str] = []
        self._starts = 0
        self._process: _Process | None = None

    def ask(self, modules: Sequence[str]) -> None:
        """Have modules imported, in this order; returns at once."""
        new = [name for name in dict.fromkeys(modules) if name not in self._asked]
        self._asked += new
        if self._process is None:
            self._start()
        elif new:
            self._process.say({"import": new})

    def record(self, module: str) -> ImportRecord:
        """Return a module's record; waits for it."""
        if module not in self._asked:
            self.ask([module])
        while module not in self._records:
            self._take()
        return self._records[module]

    def fresh(self, module: str) -> ImportRecord:
        """Import a module in an interpreter of its own, and return that record."""
        with contextlib.closing(_Process(self._settings, module)) as process:
            answer = process.answer_of(module, self._settings.timeout)
            if process.error:
                return self._blind(module, process.error)
            return self._judge(process, answer)

    def close(self) -> None:
        """End the template and everything that it has started."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def _start(self) -> None:
        self._starts += 1
        self._process = _Process(self._settings)
        if self._preloads:
            self._process.say({"preload": self._preloads})
        left = [name for name in self._asked if name not in self._records]
        self._process.say({"import": left})

    def _take(self) -> None:
        """Take one message of the template; start another one if it is gone."""
        if self._process is None:
            self._start()
        process = self._process
        assert process is not None
        message = process.read(None)
        if message is None:
            self._restart(process)
        elif "lost" in message:
            left = [name for name in self._asked if name not in self._records]
            process.say({"import": left})
        elif "module" in message:
            record = self._judge(process, message)
            self._records[record.module] = record

    def _restart(self, process: _Process) -> None:
        error = process.error or f"the audit's process {process.how_it_ended()}"
        process.close()
        self._process = None
        self._preloads.clear()  # whatever it was that ended it
        if process.error or self._starts >= _MOST_STARTS:
            for name in self._asked:
                if name not in self._records:
                    self._records[name] = self._blind(name, error)
        else:
            self._start()

    def _judge(self, process: _Process, answer: dict[str, Any]) -> ImportRecord:
        touches = process.touches_of(int(answer["pid"]))
        answer = {"timeout": self._settings.timeout, **answer}
        return verdicts.judge(
            self._package, self._settings.without, answer, touches, process.limits
        )

    def _blind(self, module: str, reason: str) -> ImportRecord:
        return ImportRecord(
            module=module,
            package=self._package,
            verdict=Verdict.NOT_OBSERVABLE,
            without=self._settings.without,
            reason=" ".join(reason.split()),
        )


class _Process:
    """A template, or a fresh interpreter for one module, with the ledger that it writes."""

    def __init__(self, settings: AuditSettings, module: str = "") -> None:
        self.error = ""
        """Why it cannot watch, if it cannot."""
        self.limits: list[str] = []
        self._received = b""
        self._folder = tempfile.mkdtemp(prefix="pytest-cudafork-imports-")
        ledger = Ledger(os.path.join(self._folder, "ledger.jsonl"))
        ledger.create()
        self._reader: LedgerReader = ledger.reader()
        self._touches: dict[int, list[Touch]] = defaultdict(list)
        self._cookie = new_cookie()
        self._log = os.memfd_create("pytest-cudafork-log", os.MFD_CLOEXEC)
        self._stacks = os.memfd_create("pytest-cudafork-stacks", os.MFD_CLOEXEC)
        self._sock, theirs = socket.socketpair()
        request = {
            "cookie": self._cookie,
            "settings": settings.to_plain(),
            "ledger": ledger.path,
            "module": module,
        }
        with theirs, launch.request_file(request) as request_fd:
            self._process = self._exec((theirs.fileno(), request_fd, self._stacks))

    def _exec(self, fds: tuple[int, int, int]) -> subprocess.Popen[bytes]:
        code = (
            f"import gc, sys; gc.disable(); sys.path[:] = {launch.path_texts()!a}; "
            f"from pytest_cudafork.imports.template import main; main{fds}"
        )
        return subprocess.Popen(
            [sys.executable, *launch.interpreter_flags(), "-c", code],
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env=unwatched(os.environ),
        )

    def say(self, message: dict[str, Any]) -> None:
        """Tell it something; one that is gone is noticed when it is listened to."""
        with contextlib.suppress(OSError):
            self._sock.sendall(json.dumps(message).encode("ascii") + b"\n")

    def read(self, deadline: float | None) -> dict[str, Any] | None:
        """Return its next message; None when it is gone, or the deadline has come."""
        while b"\n" not in self._received:
            left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
            poller = select.poll()
            poller.register(self._sock, select.POLLIN)
            if not poller.poll(left):
                return None
            try:
                data = self._sock.recv(_READ_BYTES)
            except ConnectionError:
                data = b""
            if not data:
                return None
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        watch = message.get("watch")
        if watch is not None:
            self.error = watch.get("error", "")
            self.limits = watch.get("limits", [])
        return message

    def answer_of(self, module: str, timeout: float) -> dict[str, Any]:
        """Wait for the end of a fresh interpreter; what it said, or how it ended."""
        deadline = time.monotonic() + timeout
        said: dict[str, Any] | None = {}
        while said is not None and "module" not in said:
            said = self.read(deadline)
        timed_out = said is None and time.monotonic() >= deadline
        if timed_out and last_words.ask(self._process.pid):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS)
        status = 0 if said is not None else self._exit_status()
        return {
            "module": module,
            "pid": self._process.pid,
            "status": status,
            "timed_out": timed_out,
            "over_memory": False,
            "told": None,
            **(said or {}),
            "output": self._text(self._log),
            "stacks": self._text(self._stacks),
        }

    def _text(self, fd: int) -> str:
        size = os.fstat(fd).st_size
        data = os.pread(fd, _MOST_TEXT, max(0, size - _MOST_TEXT))
        return data.decode("utf-8", "replace").strip()

    def _exit_status(self) -> int:
        """Return the exit status of a process that ends; it is killed if it does not."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(_END_SECONDS)
        self._process.kill()
        return self._process.wait()

    def how_it_ended(self) -> str:
        """Say how it ended, with what it wrote last."""
        how = crash.describe(self._exit_status())
        last = self._text(self._log).rpartition("\n")[2]
        return f"{how} ({last})" if last else how

    def touches_of(self, pid: int) -> list[Touch]:
        """Return the touches of a process that has ended."""
        for record in self._reader.new():
            if record["k"] == "touch":
                self._touches[int(record["pid"])].append(Touch.from_record(record))
        return self._touches.pop(pid, [])

    def close(self) -> None:
        """End it, with all that descends from it."""
        self._sock.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
            self._process.wait()
        leftovers.end({self._cookie: self._process.pid})
        self._reader.close()
        for fd in (self._log, self._stacks):
            os.close(fd)
        shutil.rmtree(self._folder, ignore_errors=True)


def unwatched(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without what a watched session hands on: the audit has its own."""
    env = {key: value for key, value in environ.items() if not key.startswith("_CUDAFORK_")}
    for name in _PATHS:
        folders = env.get(name, "").split(os.pathsep)
        kept = [folder for folder in folders if not folder.startswith(_OWN_FOLDER)]
        if kept != folders:
            env.pop(name)
            if any(kept):
                env[name] = os.pathsep.join(kept)
    return env
