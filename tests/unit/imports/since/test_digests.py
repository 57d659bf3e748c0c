"""Names and fingerprints of files, as a record has them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_cudafork.imports.since import digests
from pytest_cudafork.imports.since.digests import ABSENT, Digests, in_words, modules_in


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path.resolve() / "root"
    (root / "pkg").mkdir(parents=True)
    (root / "pkg" / "a.py").write_text("a")
    (tmp_path / "link").symlink_to(root)
    return root


def test_files_are_named_by_their_place_in_the_repository(root: Path) -> None:
    names = Digests(str(root)).names
    assert names(str(root / "pkg" / "a.py")) == ("pkg/a.py",)
    assert names(str(root.parent / "link" / "pkg" / "a.py")) == ("pkg/a.py",)
    assert names(f"{root}/pkg/") == ("pkg/",)
    assert names(f"{root}/pkg//") == ("pkg//",)
    assert names(f"{root}//") == (".//",)
    assert names(f"{root}/") == (), "what is installed is looked for there: by most imports"
    (root / "linked.json").symlink_to(root / "pkg" / "a.py")
    assert names(str(root / "linked.json")) == ("linked.json", "pkg/a.py")


def test_the_folder_of_all_files_is_not_that_of_the_process(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    assert Digests(str(root)).names("//") == (), "its names"
    assert Digests(str(root)).names("///") == ("///",), "what can be imported from there"


def test_of_other_folders_only_code_counts(root: Path) -> None:
    names = Digests(str(root)).names
    assert names(f"{root.parent}/other/b.py") == (f"{root.parent}/other/b.py",)
    assert names(f"{root.parent}/other/cache.json") == ()
    assert names(f"{root.parent}/other/") == ()
    assert names(f"{root.parent}/other//") == (f"{root.parent}/other//",)


def test_a_fingerprint_tells_content_and_absence(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Digests(str(root)).of_all(["pkg/a.py", "pkg/", "pkg/none.json"])
    assert first["pkg/none.json"] == ABSENT
    (root / "pkg" / "__pycache__").mkdir()
    assert Digests(str(root)).of_all(first) == first, "what Python caches is no change"
    (root / "pkg" / "a.py").write_text("b")
    (root / "pkg" / "none.json").write_text("now")
    now = Digests(str(root)).of_all(first)
    assert all(now[name] != first[name] for name in first)
    monkeypatch.setattr(digests, "_MOST_BYTES", 0)
    by_time = Digests(str(root)).of("pkg/a.py")
    os.utime(root / "pkg" / "a.py", ns=(5, 5))
    assert Digests(str(root)).of("pkg/a.py") == "1 5" != by_time


def test_what_changes_while_the_audit_runs_is_told(root: Path) -> None:
    looked_at = Digests(str(root))
    looked_at.of_all(["pkg/a.py", "pkg/"])
    new = root / "new.json"
    new.write_text("{}")
    os.utime(new, ns=(100, 100))
    names = ["pkg/a.py", "pkg/", "new.json", "none.json"]
    assert looked_at.changed_meanwhile(names, since_ns=101) == set()
    assert looked_at.changed_meanwhile(names, since_ns=99) == {"new.json"}
    (root / "pkg" / "a.py").write_text("b")
    assert looked_at.changed_meanwhile(names, since_ns=101) == {"pkg/a.py"}


def test_of_where_python_looks_only_what_can_be_imported_counts(root: Path) -> None:
    first = Digests(str(root)).of("pkg//")
    (root / "pkg" / "data.json").write_text("")
    assert Digests(str(root)).of("pkg//") == first
    (root / "pkg" / "b.py").write_text("")
    assert Digests(str(root)).of("pkg//") != first
    assert in_words("pkg//") == "what can be imported from pkg"
    assert in_words("pkg/b.py") == "pkg/b.py"


def test_sources_that_name_a_file_may_ask_whether_it_is_there(root: Path) -> None:
    (root / "pkg" / "a.py").write_text("HAS_IT = (here / 'use.flag').exists()")
    (root / "pkg" / "b.json").write_text("use.flag")
    among = ["pkg/a.py", "pkg/b.json", "pkg/none.py", "pkg//"]
    naming = Digests(str(root)).naming
    assert naming(["data/use.flag", "other"], among) == {"pkg/a.py"}
    assert naming(["data/useXflag"], among) == set()
    assert naming([], among) == set()


def test_modules_of_a_folder_are_what_can_be_imported_from_there(root: Path) -> None:
    for name in ("pkg/__init__.py", "script.py", "text.txt", "native.so"):
        (root / name).write_text("")
    for name in ("build", "no-name", "without_init"):
        (root / name).mkdir()
    (root / "no-name" / "a.py").write_text("")
    (root / "without_init" / "a.py").write_text("")
    assert modules_in(str(root)) == ["native", "pkg", "script", "without_init"]
    assert modules_in(str(root / "none")) == []
