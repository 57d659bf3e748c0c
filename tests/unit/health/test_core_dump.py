"""Tests of finding the GPU core dump that a test has written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_cudafork.health import core_dump
from pytest_cudafork.settings import environment


@pytest.mark.parametrize(
    ("value", "asked"), [("1", True), ("0", False), ("", False), (None, False)]
)
def test_it_is_asked_for_by_the_drivers_variable(
    monkeypatch: pytest.MonkeyPatch, value: str | None, asked: bool
) -> None:
    monkeypatch.delenv(environment.CORE_DUMP, raising=False)
    if value is not None:
        monkeypatch.setenv(environment.CORE_DUMP, value)
    assert core_dump.is_asked_for() is asked


@pytest.mark.parametrize("pattern", [None, "dumps/gpu.%h.%p.%t", "dumps/[1]gpu.%h.%p.%t"])
def test_the_newest_of_this_process_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(environment.CORE_DUMP_FILE, raising=False)
    host, pid = os.uname().nodename, os.getpid()
    names = [f"core_{time}_{host}_{pid}.nvcudmp" for time in (1, 2)]
    if pattern:
        monkeypatch.setenv(environment.CORE_DUMP_FILE, pattern)
        (tmp_path / "dumps").mkdir()
        names = [pattern.replace("%h.%p.%t", f"{host}.{pid}.{time}") for time in (1, 2)]
    assert core_dump.written_since(0.0) == ""
    for number, name in enumerate(names):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1000.0 + 50 * number,) * 2)
    (tmp_path / f"core_3_{host}_{pid + 1}.nvcudmp").touch()
    assert core_dump.written_since(1020.0) == str(tmp_path / names[1])
    assert core_dump.written_since(1060.0) == ""
