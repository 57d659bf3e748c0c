"""The fragments of the changelog are well-formed, and towncrier joins them as configured here."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repo.sources import PROJECT

FOLDER = PROJECT / "changelog.d"
FRAGMENTS = sorted(set(FOLDER.glob("*")) - {FOLDER / "README.md", FOLDER / "template.md.jinja"})

needs_towncrier = pytest.mark.skipif(
    importlib.util.find_spec("towncrier") is None, reason="towncrier is in the extra [lint]"
)


def complaint(text: str) -> str:
    """Return what is wrong with the text of a fragment, or ""."""
    text = text.strip()
    if not text:
        return "is empty: tell users in whole sentences what is new"
    if not (text[0].isupper() or text[0] in "`@"):
        return f"begin {text[:20]!r} with a capital letter"
    if not text.endswith((".", "`")):
        return f"end {text[-20:]!r} with a full stop"
    return ""


def test_the_fragments_of_this_project_are_sentences() -> None:
    assert FRAGMENTS or "## 0." in (PROJECT / "CHANGELOG.md").read_text(encoding="utf-8")
    wrong = {path.name: complaint(path.read_text(encoding="utf-8")) for path in FRAGMENTS}
    assert not {name: what for name, what in wrong.items() if what}


@pytest.mark.parametrize(
    ("text", "words"),
    [("\n", "empty"), ("no capital.\n", "capital letter"), ("No full stop\n", "full stop")],
)
def test_what_is_no_sentence_is_found(text: str, words: str) -> None:
    assert words in complaint(text)


def project(folder: Path) -> Path:
    """Make a project with the configuration of this one and no fragments."""
    (folder / "changelog.d").mkdir()
    for name in ("pyproject.toml", "changelog.d/README.md", "changelog.d/template.md.jinja"):
        shutil.copy(PROJECT / name, folder / name)
    shutil.copytree(PROJECT / "pytest_cudafork" / "_startup", folder / "pytest_cudafork")
    return folder


def build(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run towncrier on a project."""
    command = [sys.executable, "-m", "towncrier", "build", "--version", "1.2.3", *args]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow
@needs_towncrier
def test_every_fragment_of_this_project_is_taken() -> None:
    done = build(PROJECT, "--draft")
    assert done.returncode == 0, done.stderr
    words = "".join(done.stdout.split())
    for path in FRAGMENTS:
        assert "".join(path.read_text(encoding="utf-8").split()) in words, path.name


@pytest.mark.slow
@needs_towncrier
def test_fragments_become_a_section_above_the_former_ones(tmp_path: Path) -> None:
    folder = project(tmp_path)
    (folder / "changelog.d" / "b-new.feature.md").write_text("The plugin can now count.\n")
    (folder / "changelog.d" / "a-bug.fix.md").write_text("A fork of a fork\nis no longer lost.\n")
    start = (PROJECT / "CHANGELOG.md").read_text(encoding="utf-8").partition("\n## ")[0]
    (folder / "CHANGELOG.md").write_text(f"{start}\n## 0.0.1\n\nOld.\n")
    done = build(folder, "--yes", "--date", "2026-11-23")
    assert done.returncode == 0, done.stderr
    text = (folder / "CHANGELOG.md").read_text()
    assert [line for line in text.splitlines() if line][2:] == [
        "## 1.2.3 (2026-11-23)",
        "### New",
        "- The plugin can now count.",
        "### Fixed",
        "- A fork of a fork",
        "  is no longer lost.",
        "## 0.0.1",
        "Old.",
    ]


@pytest.mark.slow
@needs_towncrier
def test_a_fragment_of_an_unknown_type_is_named(tmp_path: Path) -> None:
    folder = project(tmp_path)
    (folder / "changelog.d" / "thing.surprise.md").write_text("A sentence.\n")
    done = build(folder, "--draft")
    assert done.returncode == 1
    assert "thing.surprise.md" in done.stderr
