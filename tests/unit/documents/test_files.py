"""Several files: each tells of those that could not be written, and none is left out for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_cudafork.documents.files import OutFile, write_files


class Files:
    """Files that keep what they were told each time they were written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.told: dict[str, list[tuple[str, ...]]] = {}

    def file(self, name: str, *, once: bool = False, error: Exception | None = None) -> OutFile:
        """Return one; ``error`` is what writing it comes to."""

        def write(failures: tuple[str, ...]) -> None:
            if error is not None:
                raise error
            self.told.setdefault(name, []).append(failures)
            (self.folder / name).write_text(name)

        return OutFile(name, str(self.folder / name), write, once)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Files in a folder of the test."""
    return Files(tmp_path)


def test_each_is_written_once_where_all_can_be(files: Files) -> None:
    written, failures = write_files([files.file("a"), files.file("b", once=True)])
    assert failures == []
    assert written == [f"a: {files.folder}/a", f"b: {files.folder}/b"]
    assert files.told == {"a": [()], "b": [()]}


def test_who_was_written_before_a_failure_is_written_again(files: Files) -> None:
    full = OSError(28, "No space left on device")
    written, failures = write_files(
        [
            files.file("appended", once=True),
            files.file("early"),
            files.file("full", error=full),
            files.file("late"),
            files.file("odd", error=ValueError("embedded null byte")),
        ]
    )
    assert [line.partition(":")[0] for line in written] == ["appended", "early", "late"]
    assert failures == [
        f"the full file {files.folder}/full cannot be written: No space left on device",
        f"the odd file {files.folder}/odd cannot be written: embedded null byte",
    ]
    for name in ("early", "late", "appended"):
        assert files.told[name][-1] == tuple(failures)
    assert len(files.told["appended"]) == 1


def test_a_pipe_is_written_once_and_after_the_others(files: Files) -> None:
    os.mkfifo(files.folder / "pipe")
    order: list[str] = []
    pipe = OutFile("pipe", str(files.folder / "pipe"), lambda told: order.append(f"pipe {told}"))
    lost = files.file("lost", error=PermissionError(13, "Permission denied"))
    _, failures = write_files([pipe, lost])
    assert order == [f"pipe {tuple(failures)}"]


def test_a_file_that_is_open_here_is_written_once_too(files: Files) -> None:
    """As standard output that goes into a file: what is written again would be there twice."""
    told: list[tuple[str, ...]] = []
    with (files.folder / "log").open("w") as log:
        out = OutFile("out", f"/dev/fd/{log.fileno()}", told.append)
        lost = files.file("lost", error=PermissionError(13, "Permission denied"))
        _, failures = write_files([out, lost])
    assert told == [tuple(failures)]
