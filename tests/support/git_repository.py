"""A git repository for a test, apart from the settings of whoever runs the tests."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

PLAIN_GIT = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    **dict.fromkeys(("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"), "A Tester"),
    **dict.fromkeys(("GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"), "tester@example.org"),
}
"""Variables with which git knows nothing of the settings of whoever runs the tests."""


class GitRepository:
    """A repository in a folder, which is made if it is not there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self._env = {
            **{name: text for name, text in os.environ.items() if not name.startswith("GIT_")},
            **PLAIN_GIT,
        }
        self.git("init", "--quiet")

    def git(self, *args: str, status: int | None = 0) -> str:
        """Run git and return what it says."""
        done = subprocess.run(
            ["git", *args],
            cwd=self.folder,
            env=self._env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        assert status in (None, done.returncode), f"{args}: {done.returncode}\n{done.stdout}"
        return done.stdout

    def write(self, files: Mapping[str, str]) -> None:
        """Write files."""
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def commit(self, title: str, files: Mapping[str, str] | None = None) -> None:
        """Write files and commit all that there is."""
        self.write(files or {})
        self.git("add", ".")
        self.git("commit", "--quiet", "--allow-empty", "-m", title)
