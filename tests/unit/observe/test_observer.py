"""One process is watched: what is written, what children inherit, and that all of it ends."""

from __future__ import annotations

import itertools
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.observe import observer as observers
from pytest_cudafork.observe import witnesses
from pytest_cudafork.observe.base import ledger
from pytest_cudafork.observe.base.records import decode
from pytest_cudafork.observe.driver.probe import Driver, DriverAnswer, TorchFlags, Verdict
from pytest_cudafork.observe.handed_on import WatchSettings
from pytest_cudafork.observe.observer import Observer
from pytest_cudafork.settings import environment


class Native:
    """Stands in for the library that watches in the driver."""

    is_phantom = False

    def __init__(self) -> None:
        self.count = 0
        self.now = 0
        self.writing = False
        self.told: list[tuple[str, str]] = []

    def touch_count(self) -> int:
        """Count the touches."""
        return self.count

    def is_writing(self) -> bool:
        """Tell whether a touch is being written."""
        return self.writing

    def state(self) -> int:
        """Tell the state of the phantom."""
        return self.now

    def reset(self, state: int = 0) -> None:
        """Set it."""
        self.now = state

    def remember(self, ledger: str, owner: str) -> None:
        """Note where touches go."""
        self.told.append((ledger, owner))


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> Native:
    """Witnesses that hook nothing, and a driver and a torch that are not there."""
    made = Native()
    monkeypatch.setattr(
        witnesses,
        "install",
        lambda device, record, poisoned: witnesses.Witnesses("made up", ("a limit",), made),  # type: ignore[arg-type]
    )
    monkeypatch.setattr(observers, "ask_driver", lambda: DriverAnswer(Driver.NOT_LOADED))
    monkeypatch.setattr(observers, "ask_torch", lambda: TorchFlags(None, None))
    return made


@pytest.fixture
def observer(native: Native, tmp_path: Path) -> Any:
    """An observer with a ledger, stopped in the end."""
    made = Observer(WatchSettings(str(tmp_path / "ledger"), "absent", "fork", ("a",)), "77")
    made.ledger.create()
    before = internal_variables(), made.lineage.unclean
    made.start()
    yield made
    made.stop()
    assert (internal_variables(), made.lineage.unclean) == before


def internal_variables() -> dict[str, str | None]:
    """Return the plugin's own variables as they are."""
    return {name: environment.optional(name) for name in environment.INTERNAL}


def test_settings_travel_as_one_line() -> None:
    settings = WatchSettings("/x/ledger", "sm_90", "touch", ("a", "b"))
    text = settings.to_text()
    assert "\n" not in text
    assert WatchSettings.from_text(text) == settings
    detailed = settings._replace(detailed=True)
    assert WatchSettings.from_text(detailed.to_text()) == detailed


@pytest.mark.parametrize("text", ['{"ledger": "x"}', "[]", '"x"'])
def test_a_line_of_somebody_else_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="_CUDAFORK_WATCH holds"):
        WatchSettings.from_text(text)


def test_the_phantom_is_asked_past_all_that_opens_libraries(
    observer: Observer, native: Native
) -> None:
    native.now = 1
    assert observer.state().verdict is Verdict.CLEAN
    native.is_phantom = True
    assert observer.state().verdict is Verdict.INITIALIZED
    assert not observer.is_poisoned()
    native.now = 2
    assert observer.is_poisoned()


def test_children_find_the_ledger_the_owner_and_the_settings(observer: Observer) -> None:
    assert environment.value(environment.LEDGER) == observer.ledger.path
    assert environment.value(environment.OWNER) == "77"
    text = environment.value(environment.WATCH)
    assert WatchSettings.from_text(text) == observer.settings


def test_a_process_can_work_for_another_one_for_a_while(observer: Observer, native: Native) -> None:
    undo = observer.work_for("99")
    assert (observer.owner, environment.value(environment.OWNER)) == ("99", "99")
    assert native.told[-1] == (observer.ledger.path, "99")
    undo()
    assert environment.value(environment.OWNER) == "77"


def test_the_library_remembers_nothing_after_the_end(native: Native, tmp_path: Path) -> None:
    made = Observer(WatchSettings(str(tmp_path / "ledger"), "absent", "fork"), "77")
    made.start()
    made.stop()
    made.stop()
    assert native.told == [(made.ledger.path, "77"), ("", "")]
    assert made.witnesses is None


def test_a_touch_is_written_and_the_phantom_told(observer: Observer, native: Native) -> None:
    observer.record_touch("torch.cuda.init", again=False, stack=[("a.py", 1, "f", 3)])
    (record,) = observer.records()
    assert (record["k"], record["entry"], record["owner"]) == ("touch", "torch.cuda.init", "77")
    assert record["stack"] == [["a.py", 1, "f", 3]]
    assert record["poisoned"] is False
    assert native.now == 1


def test_a_fault_of_ours_does_not_reach_the_user(
    observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observer, "is_poisoned", lambda: 1 / 0)
    observer.record_touch("cuInit", again=False, stack=[])
    (fault,) = observer.faults
    assert "cuInit: ZeroDivisionError" in fault
    assert observer.lost_records() == (fault,)


def test_a_ledger_that_is_gone_is_told_once(observer: Observer) -> None:
    os.remove(observer.ledger.path)
    observer.note_process()
    observer.note_process()
    fault, gone = observer.lost_records()
    assert "something was seen and could not be recorded" in fault
    assert "the ledger cannot be read any more" in gone


def test_a_touch_that_nobody_recorded_is_missing(observer: Observer, native: Native) -> None:
    native.count = 1
    assert "no record tells how" in observer.untold_touches([])[0]
    assert observer.untold_touches([{"k": "touch", "pid": os.getpid()}]) == ()
    assert observer.lost_records() == ()


def test_a_touch_that_another_thread_is_writing_is_waited_for(
    observer: Observer, native: Native, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            observer.ledger.append("touch")
            native.writing = False

    monkeypatch.setattr(observers, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    observer.settle()
    assert not looks
    native.count, native.writing = 1, True
    assert observer.untold_touches([]) == (), "the ledger tells of it by now"
    assert len(looks) == 3


def test_a_touch_that_is_never_written_is_not_waited_for_for_ever(
    observer: Observer, native: Native, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(0.0, 0.4)
    about = SimpleNamespace(sleep=lambda seconds: None, monotonic=lambda: next(clock))
    monkeypatch.setattr(observers, "time", about)
    native.writing = True
    observer.settle()
    assert next(clock) < 2
    native.count = 1
    assert observer.untold_touches([]) != ()


def test_what_was_read_is_not_read_again(
    observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each refused fork asks for everything, and there may be thousands."""
    decoded: list[bytes] = []

    def decoding(line: bytes) -> dict[str, Any] | None:
        decoded.append(line)
        return decode(line)

    monkeypatch.setattr(ledger, "decode", decoding)
    for number in range(20):
        observer.note_limit(str(number))
        records = observer.records()
        assert [record["limits"] for record in records] == [[str(n)] for n in range(number + 1)]
        records.clear()  # whose list it is
    assert len([line for line in decoded if b'"limits"' in line]) == 20


def test_one_history_is_made_and_grows_with_the_ledger(observer: Observer) -> None:
    first = observer.history()
    for number in range(3):
        observer.note_told(f"line {number}", "test_a")
        assert observer.history() is first
        assert first.records == observer.records()
    assert list(first.told) == ["line 0", "line 1", "line 2"]


def test_the_history_of_a_ledger_that_was_replaced_is_made_anew(observer: Observer) -> None:
    observer.note_told("a", "test_a")
    observer.note_told("b", "test_a")
    first = observer.history()
    os.remove(observer.ledger.path)
    assert observer.history().told == {}
    observer.ledger.create()
    observer.note_told("c", "test_a")
    assert list(observer.history().told) == ["c"]
    assert list(first.told) == ["a", "b"], "somebody may be reading it"


def test_a_ledger_that_was_replaced_or_emptied_is_read_anew(observer: Observer) -> None:
    observer.note_limit("a" * 1000)
    observer.records()
    path = observer.ledger.path
    whole = Path(path).read_bytes()
    os.rename(path, f"{path}.old")
    Path(path).write_bytes(whole)
    observer.note_limit("b")
    assert [record["limits"][0][0] for record in observer.records()] == ["a", "b"]
    os.truncate(path, 0)
    assert observer.records() == []
    os.remove(path)
    assert observer.records() == []


def test_the_ledger_is_read_while_another_thread_reads_it(observer: Observer) -> None:
    """As in a child that was forked meanwhile, where that thread is not."""
    observer.note_limit("a")
    with observer._reading:
        assert len(observer.records()) == 1
        assert len(observer.history().records) == 1
    assert len(observer.records()) == 1
    assert len(observer.history().records) == 1


def test_a_fork_is_written_and_known_to_its_child(observer: Observer) -> None:
    state = observer.state()
    frame = sys._getframe()
    observer.note_fork(api="os.fork", verdict="allowed", rule="marker", state=state, frame=frame)
    (record,) = observer.records()
    assert (record["k"], record["state"], record["rule"]) == ("fork", "clean", "marker")
    assert record["stack"][0][0] == __file__
    assert observer.lineage.next_fork == record["id"]
    observer.note_fork(api="os.fork", verdict="guarded", rule="", state=state, frame=None)
    assert observer.lineage.next_fork == ""


def test_processes_reports_and_the_watch_itself_are_written(observer: Observer) -> None:
    observer.note_process()
    observer.early = True
    observer.note_process()
    observer.note_process(began=False)
    observer.note_reported(["1", "2"])
    observer.note_watch()
    process, early, within, reported, watch = observer.records()
    assert process["ppid"] == os.getppid()
    assert [one.get("early") for one in (process, early, within)] == [None, True, None]
    assert [one.get("began") for one in (process, early, within)] == [None, None, False]
    assert reported["ids"] == ["1", "2"]
    assert (watch["level"], watch["device"], watch["witness"]) == ("fork", "absent", "made up")
    assert watch["limits"] == ["a limit"]


def test_what_torch_was_asked_counts_after_the_end_of_the_witnesses(
    observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert observer.state().verdict is Verdict.CLEAN
    monkeypatch.setattr(observer.witnesses, "torch_touched", lambda: True)
    assert observer.state().verdict is Verdict.INITIALIZED
    assert observer.lineage.unclean()
    observer.stop()
    assert observer.state().verdict is Verdict.INITIALIZED


def test_a_child_of_an_initialized_process_is_written(
    observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observer.witnesses, "torch_touched", lambda: True)
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    (record,) = observer.records()
    assert (record["k"], record["pid"], record["parent"]) == ("child", pid, os.getpid())
