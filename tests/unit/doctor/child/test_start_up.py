"""The script that looks at what the files of the start-up leave, in and without an interpreter."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from pytest_cudafork.doctor.child import start_up
from pytest_cudafork.doctor.child.start_up import MEASURED, Looks


@pytest.fixture
def waiting() -> Iterator[threading.Thread]:
    """A thread that is to be started, and ends with the test."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    yield thread
    over.set()
    if thread.ident is not None:
        thread.join()


def test_a_look_tells_what_a_call_has_left(
    waiting: threading.Thread, monkeypatch: pytest.MonkeyPatch
) -> None:
    former = multiprocessing.get_start_method(allow_none=True)
    monkeypatch.delitem(sys.modules, "this_is_new", raising=False)
    looks = Looks()

    def act(name: str) -> int:
        waiting.start()
        sys.modules["this_is_new"] = threading
        multiprocessing.set_start_method("spawn", force=True)
        return 7

    try:
        assert looks.around(act, lambda name: f"{name}.pth")("a") == 7
    finally:
        multiprocessing.set_start_method(former, force=True)
        sys.modules.pop("this_is_new", None)
    (file,) = looks.files
    # whatever else runs in this process may start threads and import meanwhile
    assert file["file"] == "a.pth"
    assert len(file["threads"]) >= 1
    assert "this_is_new" in file["modules"]
    assert file["start_method"] == ("" if former == "spawn" else "spawn")


def test_a_file_that_fails_is_looked_at_all_the_same() -> None:
    looks = Looks()

    def act() -> None:
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011 - its own
        looks.around(act, lambda: "b.pth")()
    assert [each["file"] for each in looks.files] == ["b.pth"]


def test_libraries_are_told_apart_from_modules() -> None:
    mapped = start_up.libraries()
    assert any("libc.so" in path or "ld-" in path for path in mapped), mapped
    assert all(path.startswith("/") for path in mapped)
    assert not [path for path in mapped if ".cpython-" in path]


def test_the_files_of_a_start_up_are_measured_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import site

    def main() -> None:
        for _ in range(2):  # as in a virtual environment
            site.addpackage("/site", "a.pth", None)
            site.addpackage("/site", "b.pth", None)
        site.execsitecustomize()
        site.execusercustomize()

    monkeypatch.setattr(site, "main", main)
    monkeypatch.setattr(site, "addpackage", lambda *args: None)
    monkeypatch.setattr(site, "execsitecustomize", lambda: None)
    user = ModuleType("usercustomize")
    user.__file__ = "/site/usercustomize.py"
    monkeypatch.setattr(
        site,
        "execusercustomize",
        lambda: monkeypatch.setitem(sys.modules, "usercustomize", user),
    )
    monkeypatch.delitem(sys.modules, "sitecustomize", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("_CUDAFORK_ROOT", "_CUDAFORK_WATCH"):
        monkeypatch.delenv(name, raising=False)
    start_up.main([str(tmp_path / "report.json"), MEASURED])
    files = json.loads((tmp_path / "report.json").read_text())
    expected = ["/site/a.pth", "/site/b.pth", "/site/usercustomize.py"]
    assert [each["file"] for each in files] == expected, "no sitecustomize is there"


@pytest.mark.slow
def test_an_interpreter_is_started_for_it(tmp_path: Path) -> None:
    custom = tmp_path / "sitecustomize.py"
    custom.write_text("import decimal")
    report = tmp_path / "report.json"
    subprocess.run(
        [sys.executable, start_up.__file__, str(report)],
        check=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    files = json.loads(report.read_text())
    (file,) = [each for each in files if each["file"] == str(custom)]
    assert "decimal" in file["modules"]
