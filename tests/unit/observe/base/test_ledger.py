"""The ledger: order, torn lines, many writers."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cudafork.observe.base.ledger import Ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(str(tmp_path / "ledger.jsonl"))
    made.create()
    return made


def test_records_come_back_in_the_order_in_which_they_were_written(ledger: Ledger) -> None:
    for number in range(5):
        ledger.append("touch", number=number)
    assert [record["number"] for record in ledger.reader().new()] == list(range(5))


def test_a_reader_gives_every_record_once(ledger: Ledger) -> None:
    reader = ledger.reader()
    ledger.append("touch", number=1)
    assert len(reader.new()) == 1
    assert reader.new() == []
    ledger.append("touch", number=2)
    assert [record["number"] for record in reader.new()] == [2]


def test_a_writer_that_died_in_the_middle_of_its_line_loses_that_line_alone(ledger: Ledger) -> None:
    ledger.append("touch", number=1)
    with open(ledger.path, "ab") as file:
        file.write(b'\n{"k": "touch", "pid": 7, "sta')
    ledger.append("touch", number=2)
    reader = ledger.reader()
    assert [record["number"] for record in reader.new()] == [1, 2]
    assert reader.torn == 1


def test_a_line_that_is_still_being_written_is_read_when_it_is_whole(ledger: Ledger) -> None:
    line = b"\n" + json.dumps({"k": "touch", "pid": 1, "number": 3}).encode()
    reader = ledger.reader()
    with open(ledger.path, "ab") as file:
        file.write(line[:10])
        file.flush()
        assert reader.new() == []
        file.write(line[10:])
    assert [record["number"] for record in reader.new()] == [3]
    assert reader.torn == 0


def test_records_carry_the_test_and_the_owner_from_the_environment(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "test_x.py::test_a (call)")
    monkeypatch.setenv("_CUDAFORK_OWNER", "42")
    ledger.append("touch")
    (record,) = ledger.reader().new()
    assert (record["test"], record["owner"], record["pid"]) == (
        "test_x.py::test_a (call)",
        "42",
        os.getpid(),
    )


def test_many_threads_and_processes_write_whole_lines(ledger: Ledger) -> None:
    payload = "x" * 9000  # longer than a page

    def write() -> None:
        for number in range(20):
            ledger.append("touch", number=number, payload=payload)

    threads = [threading.Thread(target=write) for _ in range(3)]
    pids = []
    for _ in range(2):
        pid = os.fork()
        if pid == 0:
            try:
                write()
            finally:
                os._exit(0)
        pids.append(pid)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for pid in pids:
        os.waitpid(pid, 0)
    reader = ledger.reader()
    assert len(reader.new()) == 100
    assert reader.torn == 0


def test_a_ledger_that_is_gone_reads_as_empty(tmp_path: Path) -> None:
    assert Ledger(str(tmp_path / "never")).reader().new() == []


def test_a_ledger_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        Ledger(str(tmp_path / "no" / "ledger")).create()


@given(st.lists(st.binary(max_size=60), max_size=8))
def test_nonsense_in_the_file_is_never_an_error(chunks: list[bytes]) -> None:
    reader = Ledger("/nonexistent").reader()
    for chunk in chunks:
        for record in reader._parse(chunk):
            assert "k" in record
