"""In the controller: takes what workers on other hosts send, into the session's ledger."""

from __future__ import annotations

import itertools
import os
from typing import Any

import pytest

from pytest_cudafork.check.session import SESSION
from pytest_cudafork.check.watch import Watch
from pytest_cudafork.hosts.parcel import CARRIED, Clocks, Parcel
from pytest_cudafork.hosts.told import KEY, message_for_worker
from pytest_cudafork.observe.base.other_hosts import moved, moved_number
from pytest_cudafork.report import trace

_NOT_HOME = "what it saw last did not come home: {why}"
_NOT_WATCHED = "nothing was watched there: is pytest-cudafork of this version installed?"


class TakesHome:
    """The plugin object, for sessions in which pytest-xdist is."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._root = os.fspath(config.rootpath)
        self._clocks = Clocks.now()
        self._numbers = itertools.count(1)
        self._hosts: dict[str, int] = {}
        """The numbers of the workers on other hosts, by their names."""

    @property
    def _watch(self) -> Watch | None:
        return self._config.stash[SESSION].watch

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker on another host what it cannot read there."""
        spec = node.gateway.spec
        if spec.popen and not spec.via:
            return  # it has this session's environment, and writes its ledger
        self._hosts[str(node.gateway.id)] = next(self._numbers)
        node.workerinput[KEY] = message_for_worker(self._config)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take what came with a report, before others look into the ledger."""
        host = self._hosts.get(str(getattr(getattr(report, "node", None), "gateway", _Nobody).id))
        if host is None:
            return
        text = report.__dict__.pop(CARRIED, None)
        parcel = _read(text)
        if parcel is not None:
            self._keep(parcel, host)
        about = getattr(report, trace.CARRIED, None)
        if about is not None:
            gpus = filter(None, str(about.get("gpus", "")).split(","))
            for key in ("pid", "ppid"):
                about[key] = moved_number(int(about[key]), host)
            about["gpus"] = ",".join(f"{gpu} of host {host}" for gpu in gpus)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Take what a worker sent last, or note that nothing came."""
        name = str(node.gateway.id)
        host = self._hosts.pop(name, None)
        if host is None or self._watch is None:
            return
        output = getattr(node, "workeroutput", None)
        parcel = _read((output or {}).get(CARRIED))
        if parcel is not None:
            self._keep(parcel, host)
            self._note(host, f"{name} on {parcel.host}", parcel.damage, parcel.limits)
        elif output is None:
            self._note(host, name, [_NOT_HOME.format(why=error or "it ended early")], [])
        else:
            self._note(host, name, [], [_NOT_WATCHED])

    def _keep(self, parcel: Parcel, host: int) -> None:
        if self._watch is not None:
            home = parcel.at_home(self._root, self._clocks)
            self._watch.observer.ledger.take_in(moved(each, host) for each in home)

    def _note(self, host: int, name: str, damage: list[str], limits: list[str]) -> None:
        if self._watch is not None:
            self._watch.observer.note_host(number=host, name=name, damage=damage, limits=limits)


class _Nobody:
    """Stands for the gateway of a report that was made here."""

    id = ""


def _read(text: object) -> Parcel | None:
    if not isinstance(text, str):
        return None
    try:
        return Parcel.from_text(text)
    except ValueError:
        return None
