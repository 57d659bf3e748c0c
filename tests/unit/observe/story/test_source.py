"""The lines of source files, wherever these are."""

from __future__ import annotations

import linecache
import os
import py_compile
import sys
import zipfile
from pathlib import Path

import pytest

from pytest_cudafork.observe.story.scopes import Scope, scope_of, tree_of
from pytest_cudafork.observe.story.source import source_line, stamp_of


def test_a_source_line_comes_without_indentation(tmp_path: Path) -> None:
    path = tmp_path / "code.py"
    path.write_text("def f():\n    return probe()\n")
    assert source_line(str(path), 2) == "return probe()"


@pytest.mark.parametrize(
    ("data", "line"),
    [
        ("name = 'é'\n".encode(), "name = 'é'"),
        (b"\xef\xbb\xbfname = '\xc3\xa9'\n", "name = 'é'"),
        (b"# coding: latin-1\r\nname = '\xe9'\r\n", "name = 'é'"),
        (b"#!/bin/sh\n# -*- coding: latin-1 -*-\nname = '\xe9'\n", "name = 'é'"),
        (b"\n\n# coding: latin-1\nname = '\xe9'\n", "name = '\ufffd'"),
        (b"# coding: no-such-one\nname = 1\n", ""),
    ],
)
def test_a_file_is_read_in_its_encoding(tmp_path: Path, data: bytes, line: str) -> None:
    path = tmp_path / "code.py"
    path.write_bytes(data)
    assert source_line(str(path), data.count(b"\n")) == line


def test_what_is_no_file_is_known_to_linecache(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "<made up by a tool>"
    assert source_line(name, 1) == ""
    monkeypatch.setitem(linecache.cache, name, (9, None, ["told = 1\n"], name))
    assert source_line(name, 1) == "told = 1"
    assert source_line(name, 2) == source_line(name, 0) == ""


CODE = "class Body:\n    line = probe()\n"


def archive_of(folder: Path, **members: str | bytes) -> Path:
    """Return a zip file with these members; two underscores stand for a slash, one for a dot."""
    path = folder / "lib.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name.replace("__", "/").replace("_", "."), data)
    return path


@pytest.mark.parametrize("member", ["mod_py", "pkg__deep__mod_py"])
def test_a_module_in_a_zip_file_is_read_there(member: str, tmp_path: Path) -> None:
    archive = archive_of(tmp_path, **{member: CODE, "other_py": ""})
    name = f"{archive}/{member.replace('__', '/').replace('_', '.')}"
    assert source_line(name, 2) == "line = probe()"
    assert scope_of(name, 2, "Body") is Scope.CLASS
    assert tree_of(name) is not None
    assert source_line(f"{archive}/not_there.py", 1) == ""


def test_a_zip_file_that_changes_is_read_again(tmp_path: Path) -> None:
    name = f"{archive_of(tmp_path, mod_py='one')}/mod.py"
    assert source_line(name, 1) == "one"
    os.utime(archive_of(tmp_path, mod_py="two"), (1, 1))
    assert source_line(name, 1) == "two"


def test_a_file_in_the_place_of_a_folder_need_not_be_a_zip_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no zip file")
    assert source_line(f"{tmp_path}/file/mod.py", 1) == ""
    assert source_line("/dev/null/mod.py", 1) == ""
    assert stamp_of(f"{tmp_path}/gone/mod.py") < 0


def test_a_module_that_was_compiled_before_it_came_into_its_egg_is_asked_of_its_loader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = tmp_path / "cudafork_in_egg.py"
    plain.write_text("VALUE = 1\n")
    compiled = tmp_path / "cudafork_in_egg.pyc"
    made = "build/egg/cudafork_in_egg.py"
    never = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(plain), str(compiled), made, invalidation_mode=never)
    egg = tmp_path / "lib.egg"
    with zipfile.ZipFile(egg, "w") as archive:
        archive.write(plain, plain.name)
        archive.write(compiled, compiled.name)
    plain.unlink()
    assert source_line(made, 1) == ""
    monkeypatch.syspath_prepend(str(egg))
    import cudafork_in_egg  # type: ignore[import-not-found]

    monkeypatch.setitem(sys.modules, "cudafork_in_egg", cudafork_in_egg)
    assert cudafork_in_egg.__loader__.get_code("cudafork_in_egg").co_filename == made
    assert source_line(made, 1) == "VALUE = 1"
    egg.unlink()
    assert source_line(made, 1) == ""
