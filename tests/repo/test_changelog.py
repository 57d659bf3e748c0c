"""The fragments of the changelog are well-formed, and the tool that joins them works."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.repo.sources import PROJECT

TOOL = PROJECT / "tools" / "build_changelog.py"


def build(project: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run the tool on a project."""
    return subprocess.run(
        [sys.executable, str(TOOL), "--project", str(project), *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def test_the_fragments_of_this_project_are_well_formed() -> None:
    done = build(PROJECT, "--check")
    assert done.returncode == 0, done.stdout


def test_fragments_become_a_section_and_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "changelog.d"
    folder.mkdir()
    (folder / "README.md").write_text("how to\n")
    (folder / "b-new.feature.md").write_text("The plugin can now count.\n")
    (folder / "a-bug.fix.md").write_text("A fork of a fork\nis no longer lost.\n")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 0.0.1\n\nOld.\n")
    done = build(tmp_path, "1.2.3")
    assert done.returncode == 0, done.stdout
    text = (tmp_path / "CHANGELOG.md").read_text()
    assert text == (
        "# Changelog\n\n## 1.2.3\n\n### New\n\n- The plugin can now count.\n\n### Fixed\n\n"
        "- A fork of a fork\n  is no longer lost.\n\n## 0.0.1\n\nOld.\n"
    )
    assert [path.name for path in folder.iterdir()] == ["README.md"]


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("thing.md", "A sentence.\n", "NAME.TYPE.md"),
        ("thing.surprise.md", "A sentence.\n", "'surprise' is not a type"),
        ("thing.fix.md", "\n", "is empty"),
        ("thing.fix.md", "no capital.\n", "capital letter"),
        ("thing.fix.md", "No full stop\n", "full stop"),
    ],
)
def test_a_bad_fragment_is_named_and_the_changelog_is_left_alone(
    tmp_path: Path, name: str, text: str, complaint: str
) -> None:
    folder = tmp_path / "changelog.d"
    folder.mkdir()
    (folder / name).write_text(text)
    done = build(tmp_path, "1.2.3")
    assert done.returncode == 1
    assert name in done.stdout
    assert complaint in done.stdout
    assert not (tmp_path / "CHANGELOG.md").exists()
    assert (folder / name).exists()


def test_a_version_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "changelog.d").mkdir()
    done = build(tmp_path, "next")
    assert done.returncode == 1
    assert "'next' is not a version" in done.stdout
