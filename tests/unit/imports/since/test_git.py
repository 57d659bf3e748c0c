"""What git is asked of a repository, and the words where it does not know."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pytest_cudafork.imports.since.git import GitError, Repository
from tests.support.git_repository import GitRepository

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> GitRepository:
    made = GitRepository(tmp_path_factory.mktemp("repository"))
    names = ("same", "edited", "staged", "gone", "moved", "sub/deep")
    made.commit("first", {f"{name}.py": name for name in names})
    made.commit("second", {".gitignore": "ignored.*\n"})
    made.write({"edited.py": "other", "staged.py": "other", "new \u6f22.py": "", "ignored.py": ""})
    made.git("add", "staged.py")
    (made.folder / "gone.py").unlink()
    made.git("mv", "moved.py", "moved_here.py")
    return made


def test_what_is_edited_staged_gone_moved_and_new_has_changed(made: GitRepository) -> None:
    change = Repository(str(made.folder / "sub")).changed_since("HEAD")
    assert change.files == (
        "edited.py", "gone.py", "moved.py", "moved_here.py", "new \u6f22.py", "staged.py"
    )  # fmt: skip
    assert change.root == str(made.folder.resolve())
    assert change.commit == made.git("rev-parse", "--short", "HEAD").strip()
    assert change.appeared == ("gone.py", "moved.py", "moved_here.py", "new \u6f22.py")
    assert change.folders == []
    older = Repository(str(made.folder)).changed_since("HEAD~1")
    assert set(older.files) == {*change.files, ".gitignore"}


def test_a_link_that_leads_elsewhere_counts_as_new(tmp_path: Path) -> None:
    made = GitRepository(tmp_path / "repository")
    link, other = made.folder / "link", made.folder / "other"
    made.write({"other": "", "a.py": ""})
    link.symlink_to("here")
    made.commit("begin")
    for path in (link, other):
        path.unlink()
        path.symlink_to("there")
    made.write({"a.py": "edited = True"})
    change = Repository(str(made.folder)).changed_since("HEAD")
    assert change.files == ("a.py", "link", "other")
    assert change.appeared == ("link", "other")


def test_a_repository_within_it_is_named_as_a_folder(tmp_path: Path) -> None:
    """Git tells none of its files; so it is for one that is untracked and for a submodule."""
    outer = GitRepository(tmp_path / "outer")
    outer.commit("begin", {"a.py": ""})
    inner = GitRepository(outer.folder / "inner")
    inner.commit("begin", {"b.py": ""})
    assert Repository(str(outer.folder)).changed_since("HEAD").folders == ["inner/"]
    outer.commit("a link to its commit")
    outer.git("config", "diff.ignoreSubmodules", "all")
    assert Repository(str(outer.folder)).changed_since("HEAD").folders == []
    inner.write({"b.py": "edited = True"})
    assert Repository(str(outer.folder)).changed_since("HEAD").folders == ["inner/"]


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_what_git_is_told_not_to_look_at_counts_where_it_differs(tmp_path: Path, flag: str) -> None:
    made = GitRepository(tmp_path / "repository")
    names = ["a \u6f22.py", "b.py", "crlf.txt", "gone.py", "plain.py"]
    made.commit(
        "begin", dict.fromkeys(names, "x = 1\n") | {".gitattributes": "*.txt text eol=crlf"}
    )
    made.git("update-index", flag, *names[:-1])
    made.write({names[0]: "x = 2", "crlf.txt": "x = 1\r\n"})
    (made.folder / "gone.py").unlink()
    repository = Repository(str(made.folder))
    change = repository.changed_since("HEAD")
    gone = ["gone.py"] if flag == "--assume-unchanged" else []  # a sparse checkout lacks others
    assert change.files == (names[0], *gone)
    assert change.appeared == tuple(gone)
    assert repository.tracked == {"plain.py", ".gitattributes"}


def test_what_a_hook_of_git_finds_set_leads_nowhere_else(
    made: GitRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", ".git")
    monkeypatch.setenv("GIT_INDEX_FILE", ".git/no-such-index")
    change = Repository(str(made.folder / "sub")).changed_since("HEAD")
    assert "staged.py" in change.files


def test_what_is_ignored_is_told(made: GitRepository) -> None:
    repository = Repository(str(made.folder))
    assert "same.py" in repository.tracked
    assert not {"ignored.py", "new \u6f22.py"} & repository.tracked
    assert repository.ignores(str(made.folder / "ignored.py"))
    assert not repository.ignores(str(made.folder / "same.py"))


def test_its_own_folder_is_in_gits(made: GitRepository) -> None:
    path = Repository(str(made.folder / "sub")).own_folder
    assert path == str(made.folder.resolve() / ".git" / "cudafork")


def test_an_unknown_commit_is_an_error(made: GitRepository) -> None:
    with pytest.raises(GitError, match=r"'no-such' is no commit of the repository .*[^)]$"):
        Repository(str(made.folder)).changed_since("no-such")


def test_a_name_that_is_an_option_of_git_is_no_commit(made: GitRepository, tmp_path: Path) -> None:
    written = tmp_path / "written"
    with pytest.raises(GitError, match="is no commit of the repository"):
        Repository(str(made.folder)).changed_since(f"--output={written}")
    assert not written.exists()


def test_in_a_shallow_clone_the_error_says_how_to_get_the_commit(
    made: GitRepository, tmp_path: Path
) -> None:
    made.git("clone", "--quiet", "--depth=1", f"file://{made.folder}", str(tmp_path / "clone"))
    repository = Repository(str(tmp_path / "clone"))
    assert repository.changed_since("HEAD").files == ()
    with pytest.raises(GitError, match=r"shallow clone.*git fetch --depth=1 origin HEAD~1"):
        repository.changed_since("HEAD~1")


def test_a_folder_of_no_repository_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(GitError, match="not a git repository"):
        Repository(str(tmp_path))


def test_without_git_the_error_says_what_it_is_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GitError, match=r"git cannot be run .*tells what has changed"):
        Repository(str(tmp_path))
