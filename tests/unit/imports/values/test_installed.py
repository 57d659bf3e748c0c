"""Which files are known by the versions of libraries, and the fingerprints of these."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path

import pytest

import pytest_cudafork
from pytest_cudafork.imports.values.installed import installed_versions, is_installed


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(f"{sysconfig.get_paths()['stdlib']}/json/__init__.py", id="json"),
        pytest.param(f"{sysconfig.get_paths()['purelib']}/lib/x.py", id="library"),
        "/any/where/site-packages/lib/x.py",
        "/usr/lib/python3/dist-packages/lib/x.py",
        "/proc/cpuinfo",
        pytest.param(str(pytest_cudafork.__file__), id="plugin"),
    ],
)
def test_libraries_the_system_and_the_plugin_are_installed(path: str) -> None:
    assert is_installed(path)


def test_a_project_is_not(tmp_path: Path) -> None:
    assert not is_installed(f"{tmp_path}/pkg/x.py")
    assert not is_installed("/usr/src/app/pkg/x.py")


def test_versions_and_builds_are_told_but_not_those_of_the_project_itself(tmp_path: Path) -> None:
    root, site = tmp_path / "root", tmp_path / "site"
    root.mkdir()
    for name, url in (
        ("one-1.dist-info", None),
        ("mine-1.dist-info", {"url": f"file://{root}", "dir_info": {"editable": True}}),
        ("copied-1.dist-info", {"url": f"file://{root}", "dir_info": {}}),
        ("theirs-1.dist-info", {"url": "file:///other", "dir_info": {"editable": True}}),
        ("broken-1.dist-info", ["?"]),
    ):
        (site / name).mkdir(parents=True)
        (site / name / "RECORD").write_text("a.py,sha256=1,1")
        if url is not None:
            (site / name / "direct_url.json").write_text(json.dumps(url))
    (site / "old.egg-info").write_text("")
    (site / "lib").mkdir()
    paths = [str(site), "/no/such/folder", f"{tmp_path}/a.zip"]
    first = installed_versions(str(root), paths)
    assert set(first) == {
        "one-1.dist-info", "copied-1.dist-info", "theirs-1.dist-info", "broken-1.dist-info",
        "old.egg-info",
    }  # fmt: skip
    (site / "one-1.dist-info" / "RECORD").write_text("a.py,sha256=2,1")
    now = installed_versions(str(root), paths)
    assert {name for name in now if now[name] != first[name]} == {"one-1.dist-info"}
    (site / "mine-1.dist-info" / "entry_points.txt").write_text("[plugins]\na = mine.a")
    with_plugin = installed_versions(str(root), paths)
    assert with_plugin.keys() - now.keys() == {"entry points of mine"}
    (site / "mine-1.dist-info").rename(site / "mine-2.dist-info")
    assert installed_versions(str(root), paths) == with_plugin


def test_an_old_editable_installation_of_the_project_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "mine.egg-info").mkdir()
    assert installed_versions(str(tmp_path.resolve()), [str(tmp_path)]) == {}
    assert set(installed_versions("/other", [str(tmp_path)])) == {"mine.egg-info"}
