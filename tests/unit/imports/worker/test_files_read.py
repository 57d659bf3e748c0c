"""Which files an import executes and reads, as Python's audit events tell them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_cudafork.imports.worker.files_read import FilesRead

_PROGRAM = """
import os, sys
sys.path.insert(0, os.getcwd())
from pytest_cudafork.imports.worker.files_read import FilesRead
heard = FilesRead().begin()
import before
heard.mark()
import pkg.reader
print(heard.found())
"""
_READER = """
import glob, json, os, pathlib
json.load(open("data.json"))
pathlib.Path("missing.txt").exists() or os.path.exists("missing.txt")
try:
    open("missing.txt")
except OSError:
    pass
open("written.txt", "w").close()
open("written.txt", "a").close()
os.close(os.open(b"bytes.bin", os.O_RDONLY))
os.listdir("pkg")
list(os.scandir())
open(os.dup(0)).close()
from before import x
"""


def test_an_import_in_a_process_of_its_own(tmp_path: Path) -> None:
    """Twice: the second time Python reads what it has compiled."""
    folder = tmp_path.resolve()
    (folder / "pkg").mkdir()
    for name, text in (
        ("before.py", "x = 1"),
        ("pkg/__init__.py", ""),
        ("pkg/reader.py", _READER),
        ("data.json", "{}"),
        ("bytes.bin", ""),
    ):
        (folder / name).write_text(text)
    env = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        own, shared = eval(done.stdout)
        own = [os.path.relpath(path, folder) + ("/" if path.endswith("/") else "") for path in own]
        assert set(own) == {
            "pkg/__init__.py", "pkg/reader.py", "data.json", "missing.txt", "bytes.bin",
            "pkg/", "./",
        }  # fmt: skip
        assert [os.path.relpath(path, folder) for path in shared] == ["before.py"]


def hear(*events: tuple[str, tuple[object, ...]]) -> list[str]:
    heard = FilesRead()
    for event, args in events:
        heard.hear(event, args)
    return heard.found()[0]


def test_extension_modules_and_libraries_are_heard() -> None:
    assert hear(
        ("import", ("pkg._c", "/src/pkg/_c.so", None, None, None)),
        ("import", ("pkg.a", None, None, None, None)),
        ("ctypes.dlopen", ("/src/lib/libx.so",)),
        ("ctypes.dlopen", (b"libcuda.so.1",)),
    ) == ["/src/pkg/_c.so", "/src/lib/libx.so"]


def test_a_file_that_may_be_made_is_read_unless_it_is_emptied() -> None:
    made = os.O_CREAT | os.O_CLOEXEC
    assert hear(
        ("open", ("/src/a", "a+", os.O_RDWR | made | os.O_APPEND)),
        ("open", ("/src/b", None, os.O_RDONLY | made)),
        ("open", ("/src/c", "w+", os.O_RDWR | made | os.O_TRUNC)),
        ("open", ("/src/d", "x+", os.O_RDWR | made | os.O_EXCL)),
        ("open", ("/src/e", "a", os.O_WRONLY | made | os.O_APPEND)),
    ) == ["/src/a", "/src/b"]


def test_what_python_caches_stands_for_its_source() -> None:
    flags = os.O_RDONLY | os.O_CLOEXEC
    assert hear(
        ("open", ("/src/pkg/__pycache__/a.cpython-312.opt-1.pyc", "r", flags)),
        ("open", ("/src/pkg/__pycache__/kernel.nbi", "r", flags)),
    ) == ["/src/pkg/a.py"]


def test_what_is_executed_is_told_wherever_it_was_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "pycache_prefix", "/cache")
    assert hear(
        ("open", ("/cache/src/pkg/a.cpython-312.pyc", "r", os.O_RDONLY)),
        ("exec", (compile("", "/src/pkg/a.py", "exec"),)),
        ("exec", (compile("", "<string>", "exec"),)),
    ) == ["/src/pkg/a.py"]


def test_where_python_looks_for_modules_is_told(tmp_path: Path) -> None:
    """By its own audit hook: the import system alone is the caller that it takes for itself."""
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("try: import pkg.none\nexcept ImportError: 0")
    done = subprocess.run(
        [sys.executable, "-c", f"before = pkg = None\n{_PROGRAM.replace('import before', '')}"
         .replace("import pkg.reader", "import pkg")],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    own, _ = eval(done.stdout)
    assert f"{tmp_path.resolve()}/pkg//" in own


@pytest.mark.parametrize(
    "event",
    [
        ("open", ()),
        ("open", (3, "r", 0)),
        ("open", ("a\0b", "w", os.O_WRONLY | os.O_CREAT)),
        ("open", ("", "r", 0)),
        ("ctypes.dlopen", (None,)),
        ("os.listdir", (5,)),
        ("os.listdir", (object(),)),
        ("exec", (object(),)),
    ],
)
def test_no_event_makes_it_raise_or_names_a_file(event: tuple[str, tuple[object, ...]]) -> None:
    assert hear(event) == []
