"""What is made of a ledger, of NVML and of open devices: a table, without a GPU."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.attach import verdict
from pytest_cudafork.attach.target import Target
from pytest_cudafork.attach.verdict import State, judge, read_history, users_of_gpus
from pytest_cudafork.gpus.nvml import NvmlError
from pytest_cudafork.observe.base import ledger as ledgers
from pytest_cudafork.observe.base.ledger import Ledger
from pytest_cudafork.observe.driver.probe import Verdict as V
from pytest_cudafork.observe.story.stories import History
from pytest_cudafork.process.descendants.process_state import monotonic_of

STARTED = 1000.0
NOW = monotonic_of(STARTED) + 10**9
"""A second after the start of all processes here, as the ledger counts."""
DRIVER = "/usr/lib/libcuda.so.580.65.06"
OLD, COPY = "/usr/lib/libcuda.so.470.256.02", "/opt/libcuda.so.1"


def target(pid: int = 20, **fields: Any) -> Target:
    base = Target(
        *(pid, "python a.py", "/py", "/py", 10, False, STARTED, ""),
        phantom=False,
        nvml=False,
        uvm=False,
        device=False,
        ledger="",
    )
    return base._replace(**fields)


USES = {"driver": DRIVER, "uvm": True, "device": True}
NVML = {"driver": DRIVER, "uvm": True, "nvml": True}
"""What NVML of driver 580 makes of a process: it loads the driver, and opens what cuInit opens."""
CLEAN, BUSY = State(V.CLEAN, ""), State(V.INITIALIZED, "")
BAD = State(V.POISONED, "")


@pytest.mark.parametrize(
    ("fields", "users", "parent", "expected", "words"),
    [
        ({}, None, None, V.CLEAN, "no driver is loaded"),
        ({"driver": DRIVER}, None, None, V.CLEAN, "the driver is loaded"),
        (USES, None, None, V.INITIALIZED, "has the device open"),
        ({**USES, "device": False}, None, None, V.INITIALIZED, "has the device open"),
        ({**USES, "uvm": False}, None, None, V.INITIALIZED, "has the device open"),
        ({**USES, "nvml": True}, None, None, V.INITIALIZED, "has the device open"),
        (NVML, None, None, V.CLEAN, "NVML has the driver's devices open"),
        (NVML, {20}, None, V.INITIALIZED, "NVML lists it"),
        ({**NVML, "forked": True}, None, CLEAN, V.CLEAN, "NVML has the driver's devices open"),
        ({**NVML, "forked": True}, None, BAD, V.POISONED, "which is poisoned"),
        ({**NVML, "driver": OLD}, None, None, V.NOT_OBSERVABLE, "by NVML, which is loaded, or"),
        ({**NVML, "driver": COPY}, None, None, V.NOT_OBSERVABLE, "not known how to tell"),
        ({"driver": DRIVER}, {20}, None, V.INITIALIZED, "NVML lists it"),
        ({**USES, "forked": True}, {20, 10}, BUSY, V.INITIALIZED, "NVML lists it"),
        ({**USES, "forked": True}, {10}, BUSY, V.POISONED, "inherited"),
        ({**USES, "forked": True}, {99}, BUSY, V.NOT_OBSERVABLE, "or initialized by itself"),
        ({**USES, "forked": True}, None, BUSY, V.NOT_OBSERVABLE, "or initialized by itself"),
        ({**USES, "forked": True}, None, CLEAN, V.INITIALIZED, "has the device open"),
        ({**USES, "forked": True}, None, None, V.NOT_OBSERVABLE, "may not be read"),
        ({**USES, "forked": False}, {10}, BUSY, V.INITIALIZED, "has the device open"),
        ({**USES, "forked": None}, {10}, BUSY, V.INITIALIZED, "has the device open"),
        ({"forked": True}, None, BAD, V.POISONED, "process 10, which is poisoned"),
        ({"forked": False}, None, BAD, V.CLEAN, "no driver"),
        ({"driver": COPY, "other_device": "/dev/dxg"}, None, None, V.NOT_OBSERVABLE, "as on WSL"),
        ({"other_device": "/dev/dxg"}, None, None, V.CLEAN, "no driver"),
        ({"driver": DRIVER, "phantom": True}, None, None, V.NOT_OBSERVABLE, "--ledger"),
    ],
)
def test_what_is_known_without_a_ledger(
    fields: dict[str, Any],
    users: set[int] | None,
    parent: State | None,
    expected: V,
    words: str,
) -> None:
    state = judge(target(**fields), None, users, {10: parent} if parent else {})
    assert state.verdict is expected
    assert words in state.why


def record(kind: str, pid: int, at: int = NOW, **fields: Any) -> dict[str, Any]:
    return {"k": kind, "id": f"{pid}-{at}", "pid": pid, "t": at, **fields}


TOUCH = record("touch", 20, stack=[["/a.py", 3, "<module>", 0]])


def told(*records: dict[str, Any], **fields: Any) -> State:
    return judge(target(**fields), History(records), None, {})


def test_a_touch_in_the_ledger_names_its_line() -> None:
    state = told(TOUCH, **USES)
    assert state.verdict is V.INITIALIZED
    assert state.touch is not None
    assert state.touch.where == "/a.py:3"


def test_the_ledger_knows_a_process_by_the_number_in_its_namespace() -> None:
    assert told(TOUCH, pid=4711, inner=20, **USES).verdict is V.INITIALIZED
    assert told(TOUCH, pid=20, inner=3, **USES).touch is None
    child = record("child", 20, parent=1, fork="")
    state = told(record("touch", 1, NOW - 1), child, pid=4711, inner=20)
    assert state.verdict is V.POISONED
    assert "forked from process 1 of its PID namespace, which" in state.why


def test_a_child_in_the_ledger_is_poisoned_with_fork_and_touch() -> None:
    fork = record("fork", 20, NOW + 1, stack=[["/a.py", 9, "main", 3]])
    child = record("child", 30, NOW + 2, parent=20, fork=fork["id"])
    history = History([TOUCH, fork, child])
    state = judge(target(30, parent=20, forked=True), history, {30}, {})
    assert state.verdict is V.POISONED, "what the process itself said counts more than a list"
    assert "from process 20" in state.why
    assert state.touch is not None
    assert state.touch.where == "/a.py:3"
    assert [frame.lineno for frame in state.fork] == [9]


@pytest.mark.parametrize("fields", [{"poisoned": True}, {"state": "poisoned"}])
def test_a_fork_by_native_code_is_known_by_what_its_child_does(fields: dict[str, Any]) -> None:
    assert told(record("touch", 20, stack=[], **fields)).verdict is V.POISONED
    assert "not known" in told(record("touch", 20, stack=[], **fields)).why


def test_records_of_another_process_with_the_same_number_do_not_count() -> None:
    old = record("touch", 20, monotonic_of(STARTED) - 10**9, stack=[])
    assert told(old).verdict is V.CLEAN


def test_what_was_before_an_exec_does_not_count() -> None:
    begins = record("process", 20, NOW + 5, argv=["b.py"])
    assert told(TOUCH, begins).verdict is V.CLEAN
    later = record("touch", 20, NOW + 6, stack=[])
    assert told(TOUCH, begins, later).verdict is V.INITIALIZED


def test_a_phantom_whose_ledger_has_no_touch_is_clean() -> None:
    state = told(record("process", 20), driver=DRIVER, phantom=True)
    assert (state.verdict, state.touch) == (V.CLEAN, None)
    assert "its ledger has no touch" in state.why


def test_a_ledger_is_read_and_nothing_else_is_taken_for_one(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(str(path))
    ledger.create()
    ledger.append("touch", stack=[])
    history, lost = read_history(str(path))
    assert history is not None
    assert (len(history.touches), lost) == (1, [])
    ledger.mark_loss()
    assert "could not write a record" in read_history(str(path))[1][0]
    assert read_history("") == (None, [])
    path.write_text("no ledger")
    with pytest.raises(OSError, match="is no ledger"):
        read_history(str(path))
    pipe = tmp_path / "pipe.jsonl"
    os.mkfifo(pipe)  # is not waited for
    for other in (pipe, tmp_path):
        with pytest.raises(OSError, match="is no ledger"):
            read_history(str(other))
    with pytest.raises(FileNotFoundError):
        read_history(str(tmp_path / "nope"))


def test_a_record_that_is_being_written_is_waited_for_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(str(path))
    ledger.create()
    ledger.append("touch", stack=[])
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])

    def write_the_rest(seconds: float) -> None:
        path.write_bytes(whole)

    monkeypatch.setattr(ledgers, "time", SimpleNamespace(sleep=write_the_rest))
    history, lost = read_history(str(path))
    assert history is not None
    assert (len(history.touches), lost) == (1, [])


def test_without_nvml_nobody_is_known_to_use_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise NvmlError("there is none")

    monkeypatch.setattr(verdict, "open_nvml", fails)
    assert users_of_gpus() is None


def test_the_users_of_all_gpus_are_taken_together(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nvml:
        def __enter__(self) -> Nvml:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def devices(self) -> list[Any]:
            return [type("Device", (), {"uuid": uuid}) for uuid in ("a", "b")]

        def memory(self, uuid: str) -> Any:
            return type("Memory", (), {"processes": {"a": {1: 5}, "b": {2: None}}[uuid]})

    monkeypatch.setattr(verdict, "open_nvml", Nvml)
    assert users_of_gpus() == frozenset({1, 2})
