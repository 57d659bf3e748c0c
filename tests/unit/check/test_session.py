"""What a session holds: its settings, its watch and its ledger, for as long as it is configured."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.check import watch as watches
from pytest_cudafork.check.session import SESSION, begin, begin_again, resolve_device
from pytest_cudafork.observe import witnesses
from pytest_cudafork.observe.base.ledger import Ledger
from pytest_cudafork.observe.handed_on import WatchSettings
from pytest_cudafork.settings import Level, environment, real_driver
from pytest_cudafork.settings.devices import Device, DeviceKind
from pytest_cudafork.settings.options import OPTIONS


class Config:
    """A configuration without an ini file."""

    def __init__(self) -> None:
        self.stash = pytest.Stash()
        self.cleanups: list[Any] = []

    def getini(self, name: str) -> str:
        """Return that nothing is set."""
        return ""

    def add_cleanup(self, cleanup: Any) -> None:
        """Note what is to be done at the end."""
        self.cleanups.append(cleanup)

    def end(self) -> None:
        """End the configuration."""
        while self.cleanups:
            self.cleanups.pop()()


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A configuration; no options, no witnesses, and no watch that this process inherited."""
    monkeypatch.setattr(watches, "_nested", [])
    monkeypatch.setattr(
        witnesses, "install", lambda device, record, poisoned: witnesses.Witnesses("made up")
    )
    for option in OPTIONS:
        monkeypatch.delenv(option.env, raising=False)
    for name in environment.INTERNAL:
        monkeypatch.delenv(name, raising=False)
    watches.inherited_watch.cache_clear()
    made = Config()
    yield made
    made.end()
    watches.inherited_watch.cache_clear()
    left = [name for name in environment.INTERNAL if environment.is_set(name)]
    assert left in ([], [environment.PHASE]), left
    monkeypatch.undo()


def options(**given: str) -> Any:
    """Return a command line."""
    values: dict[str, str | None] = {option.name: None for option in OPTIONS}
    values.update({f"cuda_fork_{name}": value for name, value in given.items()})
    return SimpleNamespace(**values)


def test_without_the_check_there_is_no_watch(config: Any) -> None:
    made = begin(config, options())
    assert made.watch is None
    assert config.stash[SESSION] is made
    assert config.cleanups == []


def test_a_session_begins_once(config: Any) -> None:
    assert begin(config, options()) is begin(config, options(check="wrong"))


def test_the_process_of_an_isolated_test_is_known_and_its_children_are_not(
    config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environment.ISOLATED, "1")
    assert begin(config, options()).isolated
    assert not environment.is_set(environment.ISOLATED)


def test_the_check_is_for_linux(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", "darwin")
        with pytest.raises(pytest.UsageError, match="works on Linux only"):
            begin(config, options(check="fork"))


def test_a_checked_session_has_a_watch_and_a_ledger_until_its_end(config: Any) -> None:
    made = begin(config, options(check="fork", device="phantom", allow="a"))
    assert made.watch is not None
    watch = made.watch.observer.settings
    assert (watch.device, watch.level, watch.allow) == ("absent", "fork", ("a",))
    assert environment.value(environment.OWNER) == str(os.getpid())
    assert environment.value(environment.PHASE) == "start"
    assert not environment.is_set(environment.TEST)
    assert [record["k"] for record in made.watch.observer.records()] == ["watch"]
    config.end()
    assert not os.path.exists(watch.ledger)
    assert environment.is_set(environment.TEST)


def test_a_ledger_that_was_asked_for_begins_anew_and_stays(config: Any, tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    Ledger(str(path)).create()
    Ledger(str(path)).append("touch", entry="old")
    begin(config, options(check="poison", device="none", ledger=str(path)))
    config.end()
    assert "old" not in path.read_text()
    assert '"k": "watch"' in path.read_text()


def test_the_ledger_of_the_session_around_is_not_emptied(
    config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_text("of the session around\n")
    monkeypatch.setenv(environment.LEDGER, str(path))
    made = begin(config, options(check="poison", device="none", ledger=str(path)))
    assert made.watch is not None
    assert made.watch.observer.ledger.path != str(path)
    assert path.read_text() == "of the session around\n"
    config.end()
    monkeypatch.delenv(environment.LEDGER)


def test_a_ledger_that_cannot_be_written_is_a_usage_error(config: Any, tmp_path: Path) -> None:
    with pytest.raises(pytest.UsageError, match="the ledger cannot be written"):
        begin(config, options(check="fork", ledger=str(tmp_path / "missing" / "ledger")))


def test_a_link_is_no_ledger(config: Any, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "ledger")
    with pytest.raises(pytest.UsageError, match=r"is a link.*--cuda-fork-ledger"):
        begin(config, options(check="fork", ledger=str(tmp_path / "link")))


def test_a_device_that_is_not_to_be_had_is_a_usage_error(
    config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any) -> Any:
        raise witnesses.WitnessError("phantom:sm_90: not built")

    monkeypatch.setattr(witnesses, "install", refuse)
    with pytest.raises(pytest.UsageError, match="--cuda-fork-device: phantom:sm_90: not built"):
        begin(config, options(check="fork", device="phantom:sm_90"))


def inherit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, owner: str) -> Any:
    """Let this process have inherited a watch, which has begun."""
    settings = WatchSettings(str(tmp_path / "ledger"), "absent", "fork")
    (tmp_path / "ledger").touch()
    monkeypatch.setenv(environment.WATCH, settings.to_text())
    monkeypatch.setenv(environment.OWNER, owner)
    watch = watches.inherited_watch()
    assert watch is not None
    watch.begin()
    return watch


def test_an_isolated_test_works_for_its_parent(
    config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environment.ISOLATED, "1")
    watch: Any = inherit(monkeypatch, tmp_path, "4711")
    made = begin(config, options(check="fork"))
    assert made.joined
    joined_to: Any = made.watch
    assert joined_to is watch
    assert watch.observer.owner == str(os.getpid())
    config.end()
    watch.end()
    monkeypatch.delenv(environment.WATCH)
    monkeypatch.delenv(environment.OWNER)


@pytest.mark.parametrize(
    ("owner", "joined"), [(os.getppid(), True), (4711, False)], ids=["parent", "another"]
)
def test_a_worker_of_xdist_works_for_the_session_that_is_its_parent(
    config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: int, joined: bool
) -> None:
    watch: Any = inherit(monkeypatch, tmp_path, str(owner))
    # execnet runs its workers in a module of this name, wherever these tests run
    as_worker = FunctionType(begin_checked.__code__, {**globals(), "__name__": "__channelexec__"})
    assert as_worker(config).joined == joined
    config.end()
    watch.end()
    monkeypatch.delenv(environment.WATCH)
    monkeypatch.delenv(environment.OWNER)


def begin_checked(config: Any) -> Any:
    """Begin a checked session."""
    return begin(config, options(check="fork", device="none"))


@pytest.mark.parametrize(
    ("device", "driver", "resolved"),
    [
        (Device(), True, "real"),
        (Device(), False, "absent"),
        (Device(DeviceKind.REAL), True, "real"),
        (Device(DeviceKind.NONE), True, "none"),
        (Device(DeviceKind.PHANTOM), True, "absent"),
        (Device(DeviceKind.PHANTOM, "sm_90"), False, "sm_90"),
    ],
)
def test_a_device_is_what_it_means_on_this_machine(
    device: Device, driver: bool, resolved: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(real_driver, "has_real_driver", lambda: driver)
    assert resolve_device(device) == resolved


def test_the_real_device_without_a_driver_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(real_driver, "has_real_driver", lambda: False)
    monkeypatch.setattr(real_driver, "why_no_driver", lambda: "half of it is missing")
    with pytest.raises(pytest.UsageError, match=r"used here \(half of it is missing\); use auto"):
        resolve_device(Device(DeviceKind.REAL))


def test_a_worker_elsewhere_has_a_ledger_of_its_own(config: Any, tmp_path: Path) -> None:
    config.workerinput = {}
    asked = tmp_path / "asked.jsonl"
    made = begin(config, options(check="fork", ledger=str(asked), json="/no/such/folder/s.json"))
    assert made.reports_home
    assert not made.joined
    assert made.watch is not None
    assert not asked.exists()


def test_a_worker_elsewhere_begins_by_what_it_is_told(
    config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_CUDA_FORK_ALLOW", "own")
    config.workerinput, config.option = {}, options()
    assert begin(config, config.option).watch is None
    told = {"PYTEST_CUDA_FORK_CHECK": "touch", "PYTEST_CUDA_FORK_ALLOW": "told"}
    made = begin_again(config, told)
    assert made.watch is not None
    assert made.settings.level is Level.TOUCH
    assert made.settings.allow == ("own",), "what is set on the host itself stays"
    first = made.watch
    assert begin_again(config, told).watch is first
    with monkeypatch.context() as patch:  # it would put back "touch", which the end takes away
        patch.setenv("PYTEST_CUDA_FORK_CHECK", "poison")
        again = begin_again(config, {}).watch
    assert again is not None
    assert again is not first
    assert watches.current_watch() is again
    config.end()
    assert watches.current_watch() is None
