"""Runs the commands of a page, in its order, in a folder that has the files the page speaks of."""

from __future__ import annotations

import glob
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.repo.doc_shell import How, Page, Step, blocks_of, with_values
from tests.repo.sources import DOCS, PROJECT
from tests.support import interpreters
from tests.support.git_repository import PLAIN_GIT

LIMIT = 240.0
"""Seconds for a command."""
_FILE = re.compile(r"file: examples/((?:hooks/)?[\w.]+\.py)")
_FOR_A_SHELL = re.compile(r"[|&;<>$`\n]")
# What says of this session that it is one.
_OWN = ("PYTEST_CURRENT_TEST", "PYTEST_VERSION", "PYTEST_XDIST_", "GIT_")
_NUMBER = re.compile(r"\d[\d.]*")
# What is another one in each run: times, processes, commits, folders, percentages, releases.
_CHANGING = (
    (re.compile(r"\b\d+(\.\d+)? ?s\b"), "N s"),
    (re.compile(r"\b([Pp]rocess|thread) \d+"), r"\1 N"),
    (re.compile(r"\([0-9a-f]{7,}\)"), "(N)"),
    (re.compile(r"(?<![\w.>])/[^\s:'\"]*/(?=[\w.])"), ""),
    (re.compile(r"\s+\[ *\d+%\]"), ""),
    (re.compile(r"={3,}"), "==="),
    (re.compile(r"^E  ", re.M), ""),
    (re.compile(r"\bpython3?(\.\d+)?(?= )"), "python"),
)


def plain(text: str, *, any_number: bool = False) -> str:
    """Return a text in one line, without what is another one in each run."""
    for pattern, replacement in _CHANGING:
        text = pattern.sub(replacement, text)
    return " ".join((_NUMBER.sub("N", text) if any_number else text).split())


def missing_in(shown: str, printed: str, *, any_number: bool = False) -> str:
    """Return the first part of what a page shows that was not printed there, or "".

    ``...`` stands for anything.
    """
    rest = plain(printed, any_number=any_number)
    for part in plain(shown, any_number=any_number).split("..."):
        _, found, after = rest.partition(part.strip())
        if not found and part.strip():
            return part.strip()
        rest = after
    return ""


class Walk:
    """One walk through a page: its folder, and how often a command was run."""

    def __init__(self, path: Path, page: Page, folder: Path) -> None:
        self.folder = folder
        self.page = page
        self._times: Counter[str] = Counter()
        self._write()
        for block in blocks_of(path):
            if named := _FILE.fullmatch(block.mark):
                text = (DOCS / "examples" / named[1]).read_text(encoding="utf-8")
                (folder / Path(named[1]).name).write_text(text, encoding="utf-8")

    def _write(self) -> None:
        for name, text in self.page.files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            if text.startswith("#!"):
                path.chmod(0o755)

    def problem(self, step: Step) -> str:
        """Run a step and return what is not as the page says, or ""."""
        if not step.command:
            return "nothing says which command prints this"
        how = self.page.how_of(step)
        done = self._run(how.instead or step.command, how)
        status = how.status[min(self._times[step.command], len(how.status) - 1)]
        self._times[step.command] += 1
        if done.returncode != status:
            return f"exit status {done.returncode}, not {status}\n{done.stdout}"
        for wanted in filter(None, (step.shown, how.says)):
            if missing := missing_in(wanted, done.stdout, any_number=how.any_number):
                return f"not printed: {missing}\n{done.stdout}"
        return ""

    def _run(self, command: str, how: How) -> subprocess.CompletedProcess[str]:
        text = with_values(command, {**how.values, "/tmp/specimen": str(self.folder / "specimen")})
        text = re.sub(r"^\.venv/bin/", "", text)
        if text.startswith("make "):
            text = f"make --dry-run {text.removeprefix('make ')}"
        in_checkout = how.in_checkout or text.startswith("make ")
        cwd, env = PROJECT if in_checkout else self.folder, {**environment(self.folder), **how.env}
        if how.after:
            text = f"{how.before}\n{text}\nstatus=$?\n{how.after}\nexit $status"
        elif how.before:
            before = run(how.before, cwd, env)
            if before.returncode != 0:
                return before
        return run(text, cwd, env)


def environment(folder: Path) -> dict[str, str]:
    """Return variables with which the package and a folder are found, and no network is asked."""
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    return {
        **{name: text for name, text in os.environ.items() if not name.startswith(_OWN)},
        **PLAIN_GIT,
        "PATH": path,
        "PYTHONPATH": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_CUDA_FORK_DEVICE": "phantom",
        "COLUMNS": "100",
        # As for a reader who has come from it; it fails each test on pytest 9.2.
        "PYTEST_ADDOPTS": "-p no:pytest_forked",
        "CHECKOUT": str(PROJECT),
        # What is installed will do, and nothing is installed.
        "PIP_NO_INDEX": "1",
        "PIP_DRY_RUN": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


def run(text: str, cwd: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run lines for a shell; Python alone, without one, as there is a quicker way for it."""
    words = [] if _FOR_A_SHELL.search(text) else shlex.split(text)
    if words[:1] == ["pytest"]:
        words = ["python", "-m", *words]
    if words[:1] == ["python"]:
        program = [sys.executable, *_files_for(words[1:], cwd)]
    else:
        program = ["sh", "-c", text]
    return interpreters.run(program, timeout=LIMIT, merge=True, cwd=cwd, env=env)


def _files_for(words: Sequence[str], cwd: Path) -> list[str]:
    """Return words with the files that their stars stand for, as a shell would."""
    found = (sorted(glob.glob(word, root_dir=cwd)) if "*" in word else [] for word in words)
    return [name for word, names in zip(words, found, strict=True) for name in names or [word]]
