"""The page on the import audit in CI: its packages, its output and its files are real."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_cudafork import audit
from pytest_cudafork.settings.options import OPTIONS
from tests.repo.doc_runner import run
from tests.repo.sources import DOCS
from tests.repo.test_docs_examples import EXAMPLES, needs_torch
from tests.support.git_repository import GitRepository
from tests.support.imports import TOUCH, write_package

pytestmark = pytest.mark.slow

PAGE = DOCS / "how-to" / "imports-in-ci.md"
LIBRARY = EXAMPLES / "imports"
_YAML = re.compile(r"<!-- yaml: (\S+) -->\n```yaml\n(.*?)```", re.S)
_AUDIT = re.compile(r"<!-- audit of: (\S+) -->\n```\n(.*?)```", re.S)
_PRELOAD = re.compile(r"<!-- preload of: (\S+) -->\n```\n(.*?)```", re.S)


def library(name: str, folder: Path) -> Path:
    """Copy one state of the library, away from the folders of the project."""
    return Path(shutil.copytree(LIBRARY / name, folder / name))


def test_every_file_for_ci_is_shown_as_it_is() -> None:
    shown = _YAML.findall(PAGE.read_text(encoding="utf-8"))
    assert {Path(name).name for name, _ in shown} == {path.name for path in LIBRARY.glob("*.y*ml")}
    for name, text in shown:
        assert text == (DOCS / name).read_text(encoding="utf-8"), name


def test_the_files_for_ci_name_options_that_there_are() -> None:
    flags = {option.flag for option in OPTIONS}
    short = {f"--{flag.removeprefix('--cuda-fork-imports-')}" for flag in flags}
    for path in LIBRARY.glob("*.y*ml"):
        text = path.read_text(encoding="utf-8")
        used = set(re.findall(r"(--[a-z-]+)", text)) - {"--junitxml"}
        assert used, path.name
        assert used <= (short if "pytest_cudafork imports" in text else flags), path.name


@needs_torch
def test_the_audit_says_what_the_page_shows(tmp_path: Path) -> None:
    ((_, text),) = _AUDIT.findall(PAGE.read_text(encoding="utf-8"))
    folder = library("before", tmp_path)
    command = [sys.executable, "-m", "pytest_cudafork", "imports", "mypkg"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines() == text.splitlines()


@needs_torch
def test_the_example_in_python_names_the_same_lines(tmp_path: Path) -> None:
    folder = library("before", tmp_path)
    command = [sys.executable, str(LIBRARY / "audit_it.py")]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    lines = {line.split()[1].rpartition("mypkg/")[2] for line in done.stdout.splitlines()}
    assert lines == {"ops/fused.py:5", "attention.py:9", "gemm.py:5"}


@needs_torch
def test_the_repaired_library_touches_in_the_leaf_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(library("after", tmp_path))
    records = audit("mypkg")
    assert [record.module for record in records if record.verdict.touched] == ["mypkg.ops.fused"]
    assert {record.verdict.value for record in records} == {"clean", "touches"}


def test_what_may_be_preloaded_is_what_the_page_shows(tmp_path: Path) -> None:
    ((_, text),) = _PRELOAD.findall(PAGE.read_text(encoding="utf-8"))
    folder = library("preload", tmp_path)
    command = [sys.executable, "-m", "pytest_cudafork", "imports", "mypkg", "--preload"]
    env = {key: value for key, value in os.environ.items() if key != "MYPKG_BACKEND"}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.partition("\n\n")[2].splitlines() == text.splitlines()


def _commands() -> list[str]:
    """Return the page's commands of the workflow with a baseline, in its order."""
    text = PAGE.read_text(encoding="utf-8")
    (update,) = re.findall(r"^pytest .*--cuda-fork-imports-update$", text, re.M)
    (job,) = re.findall(r"- run: >-\n((?: {10}.*\n)+)", text)
    (hook,) = re.findall(r"^ +entry: (.*)$", text, re.M)
    (since,) = re.findall(r"^python -m pytest_cudafork imports .*--since=main$", text, re.M)
    return [update, " ".join(job.split()), hook, f"{since} --baseline=cuda-imports.toml"]


def status_of(command: str, folder: Path) -> tuple[int, str]:
    """Run a command of a page, and return its exit status and what it says."""
    loaded = command.replace("pytest ", "pytest -p pytest_cudafork.plugin ", 1)
    env = {**os.environ, "PYTHONPATH": str(folder), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = run(loaded if command.startswith("pytest ") else command, folder, env)
    return done.returncode, f"{command}\n{done.stdout}"


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_workflow_with_a_baseline_works_word_by_word(tmp_path: Path) -> None:
    """In an empty folder, with a package that touches CUDA; then another module does."""
    made = GitRepository(tmp_path)
    made.git("checkout", "--quiet", "-b", "main")
    write_package(tmp_path, "mypkg", {"__init__": "", "hot": TOUCH})
    made.commit("begin")
    for command in _commands():
        status, said = status_of(command, tmp_path)
        assert status == 0, said
        assert (tmp_path / "cuda-imports.toml").exists(), said
    write_package(tmp_path, "mypkg", {"new": TOUCH})
    for command in _commands()[1:]:
        status, said = status_of(command, tmp_path)
        assert status == 1, said
