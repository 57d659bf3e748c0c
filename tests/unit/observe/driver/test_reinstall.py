"""How the package is installed anew, by what pip has written down."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from pytest_cudafork.observe.driver import reinstall
from pytest_cudafork.observe.driver.reinstall import how_to_reinstall

BEGIN = "pip install --force-reinstall --no-deps "
FROM_AN_INDEX = f"{BEGIN}--no-binary=pytest-cudafork pytest-cudafork"


def installed(site: Path, monkeypatch: pytest.MonkeyPatch, told: Any, package: Path) -> None:
    """Let a distribution be installed in a folder, with what pip has written of its source."""
    info = site / "pytest_cudafork-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Name: pytest-cudafork\nVersion: 1.0\n", encoding="utf-8")
    if told is not None:
        text = told if isinstance(told, str) else json.dumps(told)
        (info / "direct_url.json").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(site))
    importlib.invalidate_caches()
    monkeypatch.setattr(reinstall, "_PACKAGE", str(package / "pytest_cudafork"))


def test_a_checkout_that_was_installed_is_installed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = tmp_path / "my checkout"
    told = {"url": checkout.as_uri(), "dir_info": {}}
    installed(tmp_path / "site", monkeypatch, told, tmp_path / "site")
    assert how_to_reinstall() == f"{BEGIN}'{checkout}'"


def test_one_that_is_in_use_itself_stays_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = tmp_path / "checkout"
    told = {"url": checkout.as_uri(), "dir_info": {"editable": True}}
    installed(tmp_path / "site", monkeypatch, told, checkout)
    assert how_to_reinstall() == f"{BEGIN}-e {checkout}"


@pytest.mark.parametrize(
    "told",
    [
        None,
        "no json",
        "[]",
        {"url": "https://example.org/x.whl", "archive_info": {}},
        {"url": "file:///tmp/x.whl", "archive_info": {}},
        {"url": "https://example.org/x", "dir_info": {}},
    ],
)
def test_whatever_else_was_installed_comes_from_an_index(
    told: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path, monkeypatch, told, tmp_path)
    assert how_to_reinstall() == FROM_AN_INDEX


def test_metadata_of_another_installation_say_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"url": (tmp_path / "checkout").as_uri(), "dir_info": {}}
    installed(tmp_path / "site", monkeypatch, told, tmp_path / "elsewhere")
    assert how_to_reinstall() == FROM_AN_INDEX


def test_without_metadata_it_comes_from_an_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    assert how_to_reinstall() == FROM_AN_INDEX
