"""What is installed is read from files, and nothing is imported for it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_cudafork.doctor import packages
from pytest_cudafork.doctor.packages import Installed


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages, each of which ends the process that imports it."""
    harm = "raise SystemExit('imported')"
    for name in ("warez", "warez/cute"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(harm)
    (tmp_path / "warez_single.py").write_text(harm)
    info = tmp_path / "Warez_Kit-1.2+cu13torch2.8.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: Warez-Kit\nVersion: 1.2+cu13torch2.8\n"
        "Requires-Dist: triton==3.6.0; python_version >= '3'\n"
        "Requires-Dist: pytorch-triton==1; python_version < '3'\n"
        "Requires-Dist: Triton>9; extra == 'more'\n"
        "Requires-Dist: other\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_packages_are_found_without_importing_them(site: Path) -> None:
    version = "1.2+cu13torch2.8"
    assert packages.find("warez", "nope-kit", "warez-kit") == Installed(
        str(site / "warez"), version, "warez-kit"
    )
    assert packages.find("warez.cute") == Installed(str(site / "warez" / "cute"))
    assert packages.find("warez_single") == Installed(str(site))
    assert packages.find("warez.nope") is None
    assert packages.find("no_such_warez") is None
    assert not {"warez", "warez_single"} & set(sys.modules)


def test_what_a_module_that_was_put_in_place_says_of_itself_does_not_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class NoSpec:
        __spec__ = None

    monkeypatch.setitem(sys.modules, "warez_mock", NoSpec())
    assert packages.find("warez_mock") is None


@pytest.mark.parametrize("metadata", [None, b"", b"Name: engine\n", b"\xff\xfe"])
def test_metadata_that_an_installation_has_left_broken_are_none(
    site: Path, metadata: bytes | None
) -> None:
    (site / "engine").mkdir()
    info = site / "engine-1.0.dist-info"
    info.mkdir()
    if metadata is not None:
        (info / "METADATA").write_bytes(metadata)
    assert packages.find("engine", "engine") == Installed(str(site / "engine"))
    assert packages.required("engine", "triton") == []


def test_requirements_hold_for_this_environment(site: Path) -> None:
    assert packages.required("warez-kit", "triton", "pytorch-triton") == ["triton==3.6.0"]
    assert packages.required("no-such-warez", "triton") == []
    assert packages.satisfies("triton==3.6.0", "3.6.0+git1")
    assert packages.satisfies("triton>=3", "3.7.0rc1")
    assert not packages.satisfies("triton==3.6.0", "3.5.0")
    assert not packages.satisfies("triton==3.6.0", "unknown")


def test_texts_are_read_and_nothing_is_run(tmp_path: Path) -> None:
    path = tmp_path / "version.py"
    path.write_text(
        "from typing import Optional\n__version__ = '2.11.0+cu130'\ncuda: Optional[str] = '13.0'\n"
        "hip: Optional[str] = None\ndebug = False\na = b = 'c'\nx: int\nlate = str(1 / 0)\n"
    )
    assert packages.assigned_texts(str(path)) == {
        "__version__": "2.11.0+cu130",
        "cuda": "13.0",
        "hip": "",
        "a": "c",
        "b": "c",
    }
    path.write_text("no python")
    with pytest.raises(SyntaxError):
        packages.assigned_texts(str(path))
