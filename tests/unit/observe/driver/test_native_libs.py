"""The native libraries as files, and what is said to one that is loaded."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_cudafork.compat.cpython_layout import Place
from pytest_cudafork.observe.driver import native_libs
from pytest_cudafork.observe.driver.native_libs import (
    INITIALIZED,
    NativeUnavailable,
    NativeWitness,
    is_ours,
    load,
    mapped,
    require,
    why_not,
)
from tests.unit.observe.driver.fake_library import Library


def witness(**about: Any) -> tuple[Any, NativeWitness]:
    """Return a library and the witness that talks to it."""
    library: Any = Library(**about)
    return library, NativeWitness(library)


def test_libraries_that_were_not_built_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = str(tmp_path / "libcuda.so.1")
    monkeypatch.setattr(native_libs, "PHANTOM_DRIVER", missing)
    assert why_not().startswith(f"The native library {missing!r} was not built. Install a C")
    with pytest.raises(NativeUnavailable, match="was not built"):
        require()


def test_another_system_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", "darwin")
        assert why_not() == "The native libraries exist for Linux only, this is 'darwin'."


def test_where_they_are_nothing_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    here = __file__
    for name in ("PHANTOM_DRIVER", "PHANTOM_NAME", "PHANTOM_NVML", "INJECTION"):
        monkeypatch.setattr(native_libs, name, here)
    assert why_not() == ""
    require()


def test_a_file_that_is_no_library_is_told(tmp_path: Path) -> None:
    path = tmp_path / "libodd.so"
    path.write_text("not a library")
    with pytest.raises(NativeUnavailable, match=r"libodd\.so' cannot be loaded: .*C compiler"):
        load(str(path), os.RTLD_NOW)


def test_a_library_is_found_only_where_it_is_mapped() -> None:
    assert mapped("libcudafork-no-such.so") is None
    libc = mapped("libc.so.6")
    assert libc is not None
    assert not is_ours(libc)
    assert is_ours(Library())  # type: ignore[arg-type]


def test_the_state_and_the_count_are_the_librarys() -> None:
    _, made = witness(state=INITIALIZED)
    assert (made.state(), made.touch_count(), made.is_phantom) == (INITIALIZED, 3, True)
    assert not made.is_writing()
    assert not witness(phantom=False)[1].is_phantom


def test_the_library_is_told_where_touches_go() -> None:
    library, made = witness()
    made.remember("/x/ledger", "77")
    assert library.cudafork_remember.calls == [(b"/x/ledger", b"77")]


def test_a_phantom_changes_its_face_and_its_state() -> None:
    library, made = witness()
    made.set_face("sm_100")
    made.set_face(None)
    made.reset(INITIALIZED)
    assert library.cudafork_set_face.calls == [(b"sm_100",), (None,)]
    assert library.cudafork_reset.calls == [(INITIALIZED,)]
    assert made.face == "sm_90"


@pytest.mark.parametrize(
    ("face", "words"), [("gpu", "is not a face of the phantom driver"), ("sm_90", "does not know")]
)
def test_a_face_that_the_library_refuses_is_a_value_error(face: str, words: str) -> None:
    library, made = witness()
    library.cudafork_set_face.answer = -1
    with pytest.raises(ValueError, match=words):
        made.set_face(face)


def dumps_at(number: int) -> bool:
    """Whether faulthandler dumped stacks at a signal until now."""
    unregister: Any = faulthandler.unregister  # typeshed has it without its result
    return bool(unregister(number))


def test_stacks_are_dumped_at_a_signal_until_the_undo() -> None:
    library, made = witness()
    undo = made.arm()
    ((number, fd),) = library.cudafork_arm.calls
    assert signal.SIGRTMIN <= number <= signal.SIGRTMAX
    os.fstat(fd)
    undo()
    assert library.cudafork_arm.calls[-1] == (0, -1)
    assert not dumps_at(number)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_descriptor_that_was_closed_meanwhile_is_left_alone() -> None:
    library, made = witness()
    undo = made.arm()
    fd = library.cudafork_arm.calls[0][1]
    with open(os.devnull, encoding="ascii") as other:
        os.dup2(other.fileno(), fd)
    undo()
    os.fstat(fd)
    os.close(fd)


def test_a_library_that_is_armed_too_often_is_not_armed() -> None:
    library, made = witness(armed=-1)
    made.arm()()
    ((number, fd),) = library.cudafork_arm.calls
    assert not dumps_at(number)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_without_a_free_signal_nothing_is_armed(monkeypatch: pytest.MonkeyPatch) -> None:
    library, made = witness()
    monkeypatch.setattr(native_libs, "_handled_signals", lambda: -1)
    made.arm()()
    assert library.cudafork_arm.calls == []


def test_where_the_signals_cannot_be_known_nothing_is_armed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unknown() -> int:
        raise FileNotFoundError("/proc/self/status")

    library, made = witness()
    monkeypatch.setattr(native_libs, "_handled_signals", unknown)
    made.arm()()
    assert library.cudafork_arm.calls == []


def test_calls_of_c_functions_are_told_until_the_undo() -> None:
    library, native = witness()
    undo = native.after_call(sum, Place(1, 2, 3), len, always=True)
    assert library.cudafork_hook.calls == [(1, 2, 3, sum, len, None, 1)]
    assert undo is not None
    undo()
    undo()
    assert library.cudafork_unhook.calls == [(5,)], "once: the hook may be another's by then"
    assert native.before_call(sum, Place(1, 2, 3), len) is not None
    assert library.cudafork_hook.calls[1] == (1, 2, 3, sum, len, None, 2)


def test_where_no_more_can_be_watched_nothing_is_taken_back() -> None:
    for _, native in (witness(hooked=-1), witness(phantom=False)):
        assert native.after_call(sum, Place(1), len, always=False) is None
        assert native.before_call(sum, Place(1), len) is None


def test_what_is_loaded_is_counted_and_what_is_there_is_not_counted_again() -> None:
    code = """
import ctypes
from pytest_cudafork.observe.driver.native_libs import LoadedLibraries
loaded = LoadedLibraries()
before = loaded.count()
assert before and loaded.count() == before
ctypes.CDLL(None)
assert loaded.count() == before
import _lsprof
assert loaded.count() > before
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
