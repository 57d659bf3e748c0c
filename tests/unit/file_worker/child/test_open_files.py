"""What open files hold back: it is written, in the order in which files write to each other."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import pytest

from pytest_cudafork.compat import unpatched
from pytest_cudafork.file_worker.child import open_files


@pytest.fixture
def nothing_else(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What is there beside the files of this process, which are left alone."""
    objects: list[object] = []
    monkeypatch.setattr(unpatched.gc, "get_objects", lambda: objects)
    return objects


def test_each_kind_of_file_is_written(nothing_else: list[object], tmp_path: Path) -> None:
    with (
        open(tmp_path / "text", "w") as text,
        open(tmp_path / "data", "wb") as data,
        gzip.open(tmp_path / "packed", "wt") as packed,
        open(tmp_path / "closed", "w") as closed,
    ):
        closed.close()
        text.write("held")
        data.write(b"held")
        packed.write("held")
        memory = io.BytesIO(b"kept")
        stream = packed.buffer
        nothing_else += [data, stream, closed, object(), memory, packed, text]
        open_files.write_held_back()
        assert (tmp_path / "text").read_text() == (tmp_path / "data").read_text() == "held"
        assert gzip.decompress((tmp_path / "packed").read_bytes()) == b"held"
        assert memory.getvalue() == b"kept"


def test_a_file_from_before_the_fork_is_written_as_well(
    nothing_else: list[object], tmp_path: Path
) -> None:
    with open(tmp_path / "log", "w") as log:
        log.write("before")
        nothing_else.append(log)
        inherited = open_files.flush_all()
        assert (inherited, (tmp_path / "log").read_text()) == ([log], "before")
        nothing_else.clear()  # frozen
        log.write(", after")
        open_files.write_held_back(inherited)
        assert (tmp_path / "log").read_text() == "before, after"
