"""What is imported of a change, and what is kept of the imports for the next one."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from pytest_cudafork.imports.audit.discover import find_modules
from pytest_cudafork.imports.since.change_audit import ChangeAudit
from pytest_cudafork.imports.since.git import GitError, Repository
from pytest_cudafork.imports.values.left_behind import Files
from pytest_cudafork.imports.values.records import ImportRecord, ImportVerdict
from pytest_cudafork.imports.values.settings import AuditSettings
from pytest_cudafork.imports.values.targets import Target, targets_of
from tests.support.git_repository import GitRepository

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")

OWN = {
    "pkg": ("__init__.py",),
    "pkg.a": ("a.py",),
    "pkg.b": ("b.py", "a.py", "data.json"),
    "pkg.c": ("c.py",),
}


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GitRepository:
    made = GitRepository(tmp_path / "repository")
    files = {f"pkg/{name}": "" for name in ("__init__.py", "a.py", "b.py", "c.py", "data.json")}
    made.commit("begin", {**files, ".gitignore": "__pycache__\nvenv\n"})
    monkeypatch.syspath_prepend(str(made.folder))
    return made


def begin(made: GitRepository, ref: str = "HEAD", device: str = "sm_90") -> ChangeAudit:
    found = {"pkg": find_modules("pkg", path=[str(made.folder)])}
    return ChangeAudit(ref, found, AuditSettings(device=device), str(made.folder))


def choose(audit: ChangeAudit) -> list[str]:
    targets = targets_of({"pkg": find_modules("pkg")})
    return [target.module for target in audit.choose(targets)]


def record(made: GitRepository, module: str, *, known: bool = True) -> ImportRecord:
    package = made.folder / "pkg"
    own = tuple(str(package / name) for name in OWN.get(module, ()))
    files = Files(own, (str(package / "__init__.py"),)) if known else None
    return ImportRecord(module, "pkg", ImportVerdict.CLEAN, files=files)


def audit(
    made: GitRepository, *, but: Iterable[str] = (), unknown: Iterable[str] = ()
) -> list[str]:
    """Choose, and pretend to import what was chosen."""
    change = begin(made)
    chosen = choose(change)
    change.write(
        record(made, name, known=name not in unknown) for name in chosen if name not in but
    )
    return chosen


def test_the_first_audit_imports_all_and_says_why(made: GitRepository) -> None:
    change = begin(made)
    assert choose(change) == list(OWN)
    assert not change.few
    (line,) = change.lines()
    assert line == (
        f"since HEAD ({change.change.commit}): all 4 imports of pkg: there is no record of an "
        "earlier audit"
    )


def test_git_is_asked_nothing_twice(made: GitRepository, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []
    run = Repository._run

    def noted(self: Repository, *args: str) -> subprocess.CompletedProcess[bytes]:
        asked.append(args)
        return run(self, *args)

    monkeypatch.setattr(Repository, "_run", noted)
    audit(made)
    made.write({"pkg/a.py": "x = 1"})
    asked.clear()
    audit(made)
    assert len(asked) == len(set(asked))
    assert sum(args[0] == "diff" for args in asked) == 1


def test_after_that_it_is_what_a_change_reaches(made: GitRepository) -> None:
    audit(made)
    assert audit(made) == []
    made.write({"pkg/a.py": "x = 1", "notes.txt": ""})
    change = begin(made)
    assert choose(change) == ["pkg.a", "pkg.b"]
    assert change.few
    assert change.lines(full=True) == [
        f"since HEAD ({change.change.commit}): 2 changed files, which 2 of 4 imports of pkg can "
        "reach; the others are not judged",
        "  pkg::pkg.a: pkg/a.py",
        "  pkg::pkg.b: pkg/a.py",
    ]
    assert made.git("status", "--porcelain") == " M pkg/a.py\n?? notes.txt\n", "no file of ours"


def test_what_has_changed_since_the_commit_counts_each_time(made: GitRepository) -> None:
    audit(made)
    made.write({"pkg/c.py": "x = 1"})
    assert audit(made) == ["pkg.c"]
    assert audit(made) == ["pkg.c"]
    made.commit("c")
    assert audit(made) == []
    made.git("rm", "--quiet", "pkg/c.py")
    assert audit(made) == []


def test_a_file_that_a_source_asks_for_by_its_name_counts_when_it_appears(
    made: GitRepository,
) -> None:
    made.commit("asks", {"pkg/c.py": "FAST = os.path.exists('fast.flag')"})
    audit(made)
    assert audit(made) == []
    made.write({"fast.flag": ""})
    assert audit(made) == ["pkg.c"]


def test_what_lies_in_another_repository_that_differs_counts_each_time(
    made: GitRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = GitRepository(made.folder / "pkg" / "inner")
    inner.commit("begin", {"deep.py": ""})
    monkeypatch.setitem(OWN, "pkg.c", ("c.py", "inner/deep.py"))
    made.commit("a link to its commit")
    audit(made)
    assert audit(made) == []
    inner.write({"deep.py": "edited = True"})
    for _ in range(2):
        assert audit(made) == ["pkg.c"]


def test_what_has_changed_since_the_record_counts_though_the_commit_has_it(
    made: GitRepository,
) -> None:
    audit(made)
    made.commit("data", {"pkg/data.json": "{}"})
    assert audit(made) == ["pkg.b"]
    assert audit(made) == []


def test_what_was_chosen_and_not_imported_is_chosen_again(made: GitRepository) -> None:
    audit(made)
    made.commit("a", {"pkg/a.py": "x = 1"})
    assert audit(made, but=["pkg.b"], unknown=["pkg.a"]) == ["pkg.a", "pkg.b"]
    change = begin(made)
    assert choose(change) == ["pkg.a", "pkg.b"]
    assert "  pkg::pkg.a: too little is known of it" in change.lines(full=True)


def test_a_file_that_changes_during_the_audit_is_not_taken_for_known(made: GitRepository) -> None:
    change = begin(made)
    chosen = choose(change)
    made.commit("while it runs", {"pkg/c.py": "x = 1"})
    change.write(record(made, name) for name in chosen)
    assert audit(made) == ["pkg.c"]


def test_others_that_were_not_clean_are_named(made: GitRepository) -> None:
    change = begin(made)
    chosen = choose(change)
    hot = ImportRecord("pkg.c", "pkg", ImportVerdict.TOUCHES, files=Files((str(made.folder),)))
    change.write([*(record(made, name) for name in chosen if name != "pkg.c"), hot])
    change = begin(made)
    assert choose(change) == []
    assert change.lines()[1] == "  not clean when they were imported last: pkg::pkg.c (touches)"


def test_a_shared_file_reaches_by_what_sources_name(made: GitRepository) -> None:
    made.commit("names", {"pkg/c.py": "from pkg import a"})
    change = begin(made)
    choose(change)
    shared = (str(made.folder / "pkg" / "a.py"), str(made.folder / "pkg" / "data.json"))
    records = [
        ImportRecord(
            each,
            "pkg",
            ImportVerdict.CLEAN,
            files=Files((str(made.folder / "pkg" / OWN[each][0]),), shared),
        )
        for each in OWN
    ]
    change.write(records)
    made.write({"pkg/a.py": "x = 1"})
    assert choose(begin(made)) == ["pkg.a", "pkg.c"]
    made.write({"pkg/data.json": "[]"})
    change = begin(made)
    assert choose(change) == list(OWN)
    assert change.lines()[0].endswith("pkg/data.json has changed, which imports share")


def test_another_device_is_a_reason_for_all(made: GitRepository) -> None:
    audit(made)
    change = begin(made, device="real")
    assert choose(change) == list(OWN)
    assert "the device was sm_90 in the last audit and is real now" in change.lines()[0]


def test_a_package_elsewhere_is_an_error(made: GitRepository, tmp_path: Path) -> None:
    other = tmp_path / "other" / "pkg"
    shutil.copytree(made.folder / "pkg", other)
    ignored = made.folder / "venv" / "pkg"
    shutil.copytree(made.folder / "pkg", ignored)
    settings = AuditSettings()
    for folder, words in ((other, "is not in the repository"), (ignored, "does not track")):
        found = {"pkg": find_modules("pkg", path=[os.path.dirname(folder)])}
        with pytest.raises(GitError, match=f"pkg is imported from .*{words}.*pip install -e"):
            ChangeAudit("HEAD", found, settings, str(made.folder))


def test_a_record_that_cannot_be_written_is_an_error(made: GitRepository) -> None:
    change = begin(made)
    change.choose([Target("pkg", "pkg")])
    (made.folder / ".git" / "cudafork").write_text("in the way")
    with pytest.raises(OSError, match="cudafork"):
        change.write([])
