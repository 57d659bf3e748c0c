"""``git bisect run`` finds the commit from which a package initializes CUDA when it is imported."""

from __future__ import annotations

import shutil
import sys

import pytest

from tests.support.git_repository import GitRepository
from tests.support.imports import TOUCH

pytestmark = [
    pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed"),
    pytest.mark.skipif(sys.platform != "linux", reason="the audit works on Linux"),
]

QUIET = "VALUE = 1\n\n\nclass Kernel:\n    fast = VALUE\n\n\ndef late():\n    pass\n"
HOT = QUIET.replace("    fast = VALUE", f"    {TOUCH}")
MOVED = f"# a line above\n# and another\n{HOT}"
BROKEN = f"from shop import no_such_name\n{QUIET}"
"""The module of the kernel: as it was, hot, hot with its lines moved, and not importable."""
COMMITS = [
    ("quiet", {"shop/flash.py": QUIET}),
    ("notes", {"notes.txt": "1"}),
    ("broken", {"shop/flash.py": BROKEN}),
    ("more notes", {"notes.txt": "2"}),
    ("mended", {"shop/flash.py": QUIET}),
    ("hot", {"shop/flash.py": HOT}),
    ("lines move", {"shop/flash.py": MOVED}),
    ("last notes", {"notes.txt": "3"}),
]


class Repository(GitRepository):
    """A git repository with a package, to bisect."""

    def bisect(self, good: str, bad: str, *args: str, status: int | None = 0) -> str:
        """Bisect between two commits, named by their titles, and return what git says."""
        names = [self.git("log", "--format=%H", f"--grep=^{each}$").strip() for each in (bad, good)]
        self.git("bisect", "start", *names)
        command = (sys.executable, "-m", "pytest_cudafork", "imports", *args)
        said = self.git("bisect", "run", *command, status=status)
        self.git("bisect", "reset")
        return said


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    made = Repository(tmp_path_factory.mktemp("repository"))
    made.commit("begin", {"shop/__init__.py": "", "shop/clean.py": "VALUE = 1\n"})
    for title, files in COMMITS:
        made.commit(title, files)
    return made


PHANTOM = ("--device=phantom:sm_90", "--no-confirm", "--jobs=1")


def first_bad(said: str) -> str:
    """Return the title of the commit that git names; it is indented below the author."""
    _, found, rest = said.partition("is the first bad commit")
    assert found, said
    return next(line.strip() for line in rest.splitlines() if line.startswith("    "))


def test_the_first_commit_that_touches_is_named_past_some_that_cannot_be_imported(
    repository: Repository,
) -> None:
    place = "shop/flash.py::Kernel"
    said = repository.bisect("quiet", "last notes", "shop", f"--fail-on={place}", *PHANTOM)
    assert first_bad(said) == "hot", said
    assert f"{place}: bad: shop.flash initializes CUDA at shop/flash.py:" in said
    assert f"{place}: cannot be judged here: shop.flash is not importable: " in said


def test_commits_that_cannot_be_imported_are_skipped_and_not_guessed(
    repository: Repository,
) -> None:
    said = repository.bisect(
        "notes", "mended", "shop", "--fail-on=shop/flash.py", *PHANTOM, status=None
    )
    assert "There are only 'skip'ped commits left to test" in said, said
    assert "shop.flash is not importable: ImportError: cannot import name 'no_such_name'" in said


def test_a_wrong_command_ends_the_bisection(repository: Repository) -> None:
    said = repository.bisect(
        "quiet", "last notes", "shop", "--fail-on=shop/flash.py:5", status=None
    )
    assert "first bad commit" not in said
    assert "a line moves from commit to commit" in said
