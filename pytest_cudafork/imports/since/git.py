"""What git says of a repository: where it is, what a name of a commit means, what has changed."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

_LOCAL = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_PREFIX",
    "GIT_COMMON_DIR",
    "GIT_OBJECT_DIRECTORY",
)
"""What git sets for its hooks; relative paths in them are meant for another folder."""
_AT_ONCE = 200
"""How many files one command names: a command line has an end."""


class GitError(ValueError):
    """Git is missing, or does not know what was asked for; the message is for whoever asked."""


class Change(NamedTuple):
    """What has changed since a commit.

    Attributes:
        root: The repository's folder, without links.
        ref: What the user calls the commit.
        commit: Its name, as short as is unique.
        files: The files that differ from it, gone and new ones too, relative to ``root``. A
            repository within this one, whose files git does not name here, is one of them.
        appeared: Those of them that are new or gone, or links: where one leads can be asked without
            opening it.

    """

    root: str
    ref: str
    commit: str
    files: tuple[str, ...]
    appeared: tuple[str, ...] = ()

    @property
    def folders(self) -> list[str]:
        """The repositories within this one that differ; each ends in a slash."""
        names = (f"{name.rstrip('/')}/" for name in self.files)
        return [name for name in names if os.path.isdir(os.path.join(self.root, name))]


class Repository:
    """A repository, found from a folder in it.

    Raises:
        GitError: Git is not installed, or the folder is in no repository.

    """

    def __init__(self, folder: str) -> None:
        self.root = folder
        found = self._ask("rev-parse", "--show-toplevel")
        if not found:
            raise GitError(f"{folder} is in no work tree of git")
        self.root = os.path.realpath(found)

    def changed_since(self, ref: str) -> Change:
        """Return what differs from a commit: in the index, in the work tree, and untracked.

        Raises:
            GitError: There is no such commit here.

        """
        commit = self._commit(ref)
        differs = ("diff", "--name-status", "--no-renames", "--ignore-submodules=none", "-z")
        told = self._names(*differs, commit, "--")  # a letter, a name, and so on
        changed = told[1::2]
        appeared = [
            name
            for letter, name in zip(told[::2], changed, strict=True)
            if letter in "ADT" or os.path.islink(os.path.join(self.root, name))
        ]
        untracked = self._names("ls-files", "--others", "--exclude-standard", "-z")
        unseen = self._unseen(commit)
        gone = [name for name in unseen if not os.path.exists(os.path.join(self.root, name))]
        short = self._ask("rev-parse", "--short", commit)
        files = sorted({*changed, *untracked, *unseen})
        new = sorted({*appeared, *untracked, *gone})
        return Change(self.root, ref, short, tuple(files), tuple(new))

    def _unseen(self, commit: str) -> list[str]:
        """Return the files that differ from a commit though git is told not to look at them.

        What is not there and need not be, as in a sparse checkout, does not differ.
        """
        flagged = {name: tag for tag, name in self._listed if _is_unlooked_at(tag)}
        if not flagged:
            return []
        told = (line.partition("\t") for line in self._names("ls-tree", "-r", "-z", commit))
        in_commit = {name: about.split()[-1] for about, _, name in told}
        there, differing = [], []
        for name, tag in flagged.items():
            path = os.path.join(self.root, name)
            if os.path.isfile(path) and not os.path.islink(path) and name in in_commit:
                there.append(name)
            elif os.path.lexists(path) or tag == "h":
                differing.append(name)  # gone; or a link, or in a submodule: it may
        for start in range(0, len(there), _AT_ONCE):
            names = there[start : start + _AT_ONCE]
            hashes = self._ask("hash-object", "--", *names).split()
            differing += [
                name for name, own in zip(names, hashes, strict=True) if own != in_commit[name]
            ]
        return differing

    def _commit(self, ref: str) -> str:
        try:
            return self._ask(
                "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}"
            )
        except GitError:
            pass
        message = f"{ref!r} is no commit of the repository {self.root}"
        if self._ask("rev-parse", "--is-shallow-repository") == "true":
            message += (
                ". It is a shallow clone, which has not all commits: fetch it, as by `git fetch "
                f"--depth=1 origin {ref}`, or clone all (actions/checkout: `fetch-depth: 0`)"
            )
        raise GitError(message)

    def ignores(self, path: str) -> bool:
        """Whether git is told to ignore a file of the work tree."""
        done = self._run("check-ignore", "--quiet", "--", path)
        return done.returncode == 0

    @functools.cached_property
    def tracked(self) -> frozenset[str]:
        """The files of which git tells how they differ, relative to ``root``.

        Those of submodules, too; none that git is told not to look at.
        """
        return frozenset(name for tag, name in self._listed if not _is_unlooked_at(tag))

    @functools.cached_property
    def _listed(self) -> list[tuple[str, str]]:
        """The files that git keeps, each with a letter for what it does with it."""
        told = self._names("ls-files", "-v", "--recurse-submodules", "-z")
        return [(line[0], line[2:]) for line in told]

    @functools.cached_property
    def own_folder(self) -> str:
        """A folder for our files in git's own, where nothing is tracked or cleaned."""
        return os.path.join(self.root, self._ask("rev-parse", "--git-path", "cudafork"))

    def _names(self, *args: str) -> list[str]:
        return [name for name in self._ask(*args).split("\0") if name]

    def _ask(self, *args: str) -> str:
        done = self._run(*args)
        if done.returncode:
            said = os.fsdecode(done.stderr).strip().splitlines()
            raise GitError(said[0] if said else f"git {args[0]} fails ({done.returncode})")
        return os.fsdecode(done.stdout).rstrip("\n")

    def _run(self, *args: str) -> subprocess.CompletedProcess[bytes]:
        command: Sequence[str] = ("git", "-C", self.root, *args)
        env = {name: text for name, text in os.environ.items() if name not in _LOCAL}
        try:
            return subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, env=env, check=False
            )
        except OSError as error:
            raise GitError(f"git cannot be run ({error}): it tells what has changed") from None


def _is_unlooked_at(tag: str) -> bool:
    """Whether git takes a file for unchanged by its flag: assume-unchanged or skip-worktree."""
    return tag.islower() or tag == "S"
