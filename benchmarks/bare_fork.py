"""A pytest plugin: the least that a process for each test takes, as a floor for what isolates.

    pytest -p bare_fork --bare-fork=fork      each test in a fork of this process
    pytest -p bare_fork --bare-fork=server    each in a fork of a process that was forked once

A child runs pytest's own protocol of one test, writes the reports as pytest-xdist does and ends by
the kernel. Nothing is watched, bounded in time or cleaned up, and a child that dies ends it all: no
more is left out than what a session needs to have its reports.
"""

from __future__ import annotations

import gc
import json
import os
import struct

import pytest
from _pytest.runner import runtestprotocol

_HEAD = struct.Struct("<I")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--bare-fork", choices=("fork", "server"))


def pytest_configure(config: pytest.Config) -> None:
    """Begin, where it is asked for."""
    how = config.getoption("--bare-fork")
    if how:
        config.pluginmanager.register(_Forks() if how == "fork" else _Server(), "bare-fork-at-work")


def _run(item: pytest.Item, following: pytest.Item | None, out: int) -> None:
    """Run a test in this child, write its reports, and end."""
    gc.disable()
    to_json = item.config.hook.pytest_report_to_serializable
    reports = runtestprotocol(item, nextitem=following, log=False)
    data = json.dumps([to_json(config=item.config, report=one) for one in reports]).encode()
    os.write(out, _HEAD.pack(len(data)) + data)
    os._exit(0)


def _report(item: pytest.Item, source: int) -> None:
    """Read a child's reports and have them logged."""
    (length,) = _HEAD.unpack(os.read(source, _HEAD.size))
    data = b""
    while len(data) < length:
        data += os.read(source, length - len(data))
    hook = item.ihook
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for one in json.loads(data):
        report = hook.pytest_report_from_serializable(config=item.config, data=one)
        hook.pytest_runtest_logreport(report=report)
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


class _Forks:
    """Forks the pytest process."""

    def __init__(self) -> None:
        self._pipe = os.pipe()

    def pytest_runtestloop(self) -> None:
        """Leave what is there alone: a collection would write to all of it."""
        gc.collect()
        gc.freeze()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Run a test in a child."""
        pid = os.fork()
        if pid == 0:
            _run(item, nextitem, self._pipe[1])
        _report(item, self._pipe[0])
        os.waitpid(pid, 0)
        return True


class _Server:
    """Forks a process that was forked before the first test, and does nothing else."""

    def __init__(self) -> None:
        self._orders, self._pipe = os.pipe(), os.pipe()
        self._pid = 0

    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Start the server."""
        gc.collect()
        gc.freeze()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._orders[1])
            self._serve(session.items)
        os.close(self._orders[0])

    def pytest_sessionfinish(self) -> None:
        """End it."""
        os.close(self._orders[1])
        os.waitpid(self._pid, 0)

    def _serve(self, items: list[pytest.Item]) -> None:
        for item, following in zip(items, [*items[1:], None], strict=True):
            if not os.read(self._orders[0], 1):
                break  # the session is over
            pid = os.fork()
            if pid == 0:
                _run(item, following, self._pipe[1])
            os.waitpid(pid, 0)
        os._exit(0)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool:
        """Have the next test run."""
        os.write(self._orders[1], b".")
        _report(item, self._pipe[0])
        return True
