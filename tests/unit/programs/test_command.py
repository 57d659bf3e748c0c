"""Scripts and modules by name, and what is told of one that is not there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_cudafork.programs.command import command_of, never_ran


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with scripts the current one."""
    monkeypatch.chdir(tmp_path)
    for name in ("post.py", "post", "-c", "pkg/__main__.py", "empty/none.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("post.py", ["post.py"]),
        ("post", ["post"]),
        ("./post", ["./post"]),
        (Path("post"), ["post"]),
        (Path("pkg"), ["pkg"]),
        ("-c", ["./-c"]),
        ("pkg", ["-m", "pkg"]),
        ("json.tool", ["-m", "json.tool"]),
    ],
)
def test_a_script_is_a_path_and_a_name_a_module(script: Any, words: list[str]) -> None:
    assert command_of(script, ()) == [sys.executable, *words]


def test_a_path_is_looked_for_where_the_script_will_run(here: Path) -> None:
    (here / "pkg" / "inner").write_text("")
    assert command_of("inner", (), "pkg")[1:] == ["inner"]
    with pytest.raises(FileNotFoundError, match="there is no script 'post"):
        command_of("post.py", (), "pkg")


def test_arguments_are_texts_paths_and_numbers() -> None:
    assert command_of("post", ("a b", Path("x/y"), 3, 0.5))[2:] == ["a b", "x/y", "3", "0.5"]
    for wrong in (None, True, b"x", ["a"]):
        with pytest.raises(TypeError, match="is a text, a path or a number"):
            command_of("post", (wrong,))
    for impossible in ("a\0b", "\ud800", Path("a\0b")):
        with pytest.raises(ValueError, match="no program can be given the argument"):
            command_of("post", (impossible,))


@pytest.mark.parametrize(
    ("script", "error", "words"),
    [
        ("nosuch.py", FileNotFoundError, r"'nosuch.py' \(the folder .* is there\)"),
        ("no/such", FileNotFoundError, r"'no/such' \(nor is .*/no\)"),
        (Path("nosuch"), FileNotFoundError, "there is no script 'nosuch'"),
        (Path("empty"), IsADirectoryError, "without a __main__.py"),
        ("post me", ValueError, "no name of a module, and there is no file"),
        ("", ValueError, "no name of a module"),
        (3, TypeError, "not 3"),
    ],
)
def test_what_is_not_there_is_told(script: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        command_of(script, ())


def test_a_path_of_bytes_is_told() -> None:
    class Odd:
        def __fspath__(self) -> bytes:
            return b"post.py"

    with pytest.raises(TypeError, match="not of bytes"):
        command_of(Odd(), ())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a text, a path or a number"):
        command_of("post", (Odd(),))


def test_a_script_that_may_not_be_read_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may read anything
    with pytest.raises(PermissionError, match=r"'post.py' may not be read"):
        command_of("post.py", ())


@pytest.mark.parametrize(
    ("command", "exitcode", "stderr", "words"),
    [
        (["py", "-m", "no"], 1, "py: No module named no\n", "No module named no"),
        (["py", "-m", "no"], 0, "py: No module named no\n", ""),
        (["py", "-m", "no"], 1, "Traceback: No module named no\n", ""),
        (["py", "-m", "no"], 1, "py: hello\n", ""),
        (["py", "x.py"], 1, "py: No module named no\n", ""),
        (["py", "x.py"], 2, "py: can't open file 'x.py'\n", "can't open file 'x.py'"),
    ],
)
def test_the_interpreter_says_that_it_found_nothing(
    command: list[str], exitcode: int, stderr: str, words: str
) -> None:
    assert never_ran(command, exitcode, stderr) == words
