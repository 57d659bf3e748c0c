"""Tests of the copies of modules that a test's replacements do not reach."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import threading
import time

import pytest

from pytest_cudafork.compat import unpatched


def test_a_copy_has_what_its_module_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpid", lambda: -1)
    monkeypatch.setattr(os.path, "basename", lambda path: "")
    monkeypatch.delattr(time, "monotonic")
    assert unpatched.os.getpid() > 0
    assert unpatched.os.path.basename("a/b") == "b"
    assert unpatched.time.monotonic() > 0


def test_functions_of_os_call_each_other_as_they_were(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise AssertionError("this is the test's own")

    # as text: what a path does by itself, it may do by os
    top, folder = str(tmp_path), str(tmp_path / "a" / "b")
    for name in ("fspath", "fsencode", "stat", "lstat", "mkdir", "getcwd", "scandir"):
        monkeypatch.setattr(os, name, broken)
    for name in ("split", "join", "isabs", "exists", "isdir"):
        monkeypatch.setattr(os.path, name, broken)
    unpatched.os.makedirs(folder, exist_ok=True)
    there = unpatched.os.path.isdir(folder), unpatched.os.path.exists(folder)
    walked = [found for found, _, _ in unpatched.os.walk(top)]
    path = unpatched.os.path.abspath("x"), unpatched.os.path.basename("a/b")
    monkeypatch.undo()
    assert there == (True, True)
    assert walked == [top, str(tmp_path / "a"), folder]
    assert path == (os.path.abspath("x"), "b")


def test_the_current_thread_is_known_by_what_get_ident_was(monkeypatch: pytest.MonkeyPatch) -> None:
    here = threading.current_thread()
    found: list[threading.Thread] = []
    other = threading.Thread(target=lambda: found.append(unpatched.threading.current_thread()))
    monkeypatch.setattr(threading, "get_ident", lambda: -1)
    current = unpatched.threading.current_thread()
    monkeypatch.undo()
    other.start()
    other.join()
    assert (current, found) == (here, [other])


@pytest.mark.parametrize("name", unpatched.OFFERED)
def test_every_module_that_is_offered_is_there_and_is_no_module(name: str) -> None:
    copy = getattr(unpatched, name)
    assert copy is getattr(unpatched, name)
    assert not isinstance(copy, type(sys))  # pyfakefs would put its own in its place
    assert copy.__name__ == name


def test_what_is_not_offered_is_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'json'"):
        unpatched.json  # noqa: B018


def test_what_is_loaded_is_copied_at_once_and_nothing_else_is_loaded() -> None:
    source = (
        "import os, sys, time\n"
        "before = set(sys.modules)\n"
        "from pytest_cudafork.compat import unpatched\n"
        "os.getpid = time.monotonic = None\n"
        "assert unpatched.os.getpid() and unpatched.time.monotonic()\n"
        "loaded = {'socket', 'subprocess', 'json', 'ctypes'} & (set(sys.modules) - before)\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-c", source], check=True)
