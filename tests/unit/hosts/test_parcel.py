"""What comes home from a worker is read as it was sent, with the times and files of home."""

from __future__ import annotations

import pytest

from pytest_cudafork.hosts.parcel import Clocks, Parcel

HERE = Clocks(1300, 1000)

RECORDS = [
    {"k": "touch", "id": "1", "pid": 1, "t": 50, "stack": [["/there/pkg/a.py", 3, "f", 0]]},
    {"k": "ran", "id": "2", "pid": 1, "filename": "/there/b.py"},
    {"k": "touch", "id": "3", "pid": 1, "t": 60, "stack": [["/thereabouts/a.py", 3, "f"]]},
]


def test_it_is_read_as_it_was_sent() -> None:
    parcel = Parcel.made("/there", Clocks.now(), RECORDS)._replace(damage=["d"], limits=["l"])
    assert Parcel.from_text(parcel.to_text()) == parcel


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"host": "a"}', '{"other": 1}', "[" * 9000])
def test_anything_else_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        Parcel.from_text(text)


def test_files_below_the_root_are_those_at_home() -> None:
    home = Parcel.made("/there", HERE, RECORDS).at_home("/suite", HERE)
    assert home[0]["stack"] == [["/suite/pkg/a.py", 3, "f", 0]]
    assert home[1]["filename"] == "/suite/b.py"
    assert home[2]["stack"] == [["/thereabouts/a.py", 3, "f"]]
    assert RECORDS[0]["stack"] == [["/there/pkg/a.py", 3, "f", 0]], "nothing is changed in place"


def test_times_are_those_of_the_clock_at_home() -> None:
    """There the ledger's clock was at 40 when it was 1000 o'clock; here it is at 700 then."""
    parcel = Parcel("there", "/", 1000, 40, RECORDS, [], [])
    home = parcel.at_home("/", Clocks(1300, 1000))
    assert [record.get("t") for record in home] == [710, None, 720]
