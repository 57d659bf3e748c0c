"""What a session writes for other programs: the words, the folders, and sessions inside tests."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.settings import environment
from pytest_cudafork.settings.options import (
    GITHUB,
    HTML,
    JSON,
    SARIF,
    TRACE,
    Settings,
    read_settings,
)
from pytest_cudafork.settings.options import OPTIONS as OPTIONS_OF_ALL
from pytest_cudafork.settings.report_options import parse_github


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("all", ("annotations", "summary")),
        ("off", ()),
        ("summary", ("summary",)),
        ("summary, annotations,summary", ("summary", "annotations")),
    ],
)
def test_what_is_written_for_github(text: str, kinds: tuple[str, ...]) -> None:
    assert parse_github(text) == kinds
    assert Settings(github=kinds).reports == bool(kinds)


@pytest.mark.parametrize("text", ["", ",", "comments", "all,summary", "off,off"])
def test_other_words_are_wrong(text: str) -> None:
    with pytest.raises(ValueError, match=r"annotations|alone"):
        parse_github(text)


OPTIONS = (JSON, SARIF, TRACE, HTML, GITHUB)


def read(**given: str) -> Settings:
    """Read the options, as if these were on the command line."""
    config: Any = SimpleNamespace(getini=lambda name: "")
    namespace = SimpleNamespace(**{option.name: None for option in OPTIONS_OF_ALL})
    for name, value in given.items():
        setattr(namespace, f"cuda_fork_{name}", value)
    return read_settings(config, namespace)


@pytest.fixture(autouse=True)
def no_test_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read as a session that no test has started, without its variables."""
    monkeypatch.setattr(environment, "is_set", lambda name: False)
    monkeypatch.setitem(sys.modules, "jinja2", json)  # whether it is installed or not
    for option in OPTIONS:
        monkeypatch.delenv(option.env, raising=False)


def test_nothing_is_written_unless_it_is_asked_for() -> None:
    assert read() == Settings()
    assert not read().reports


def test_a_folder_that_is_not_there_is_told_before_the_tests_run(tmp_path: Path) -> None:
    for option in (JSON, SARIF, TRACE, HTML):
        short = option.name.removeprefix("cuda_fork_")
        assert getattr(read(**{short: str(tmp_path / "r")}), short) == str(tmp_path / "r")
        with pytest.raises(pytest.UsageError, match=f"{option.flag}: there is no folder '.*/no'"):
            read(**{short: str(tmp_path / "no" / "r")})


def test_a_session_in_a_test_does_not_write_over_the_files_of_the_one_around(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(JSON.env, str(tmp_path / "outer.json"))
    monkeypatch.setenv(GITHUB.env, "all")
    assert read().json == str(tmp_path / "outer.json")
    monkeypatch.setattr(environment, "is_set", lambda name: name == environment.TEST)
    assert read() == Settings()
    own = str(tmp_path / "inner.json")
    assert read(json=own) == Settings(json=own), "what is said on its command line counts"


def test_what_cannot_be_a_file_is_told_before_the_tests_run(tmp_path: Path) -> None:
    for option in (JSON, SARIF, TRACE, HTML):
        short = option.name.removeprefix("cuda_fork_")
        with pytest.raises(pytest.UsageError, match=f"{option.flag}: '.*' is a folder"):
            read(**{short: str(tmp_path)})
        with pytest.raises(pytest.UsageError, match=f"{option.flag}: .*cannot be the name"):
            read(**{short: "a\0b"})
        with pytest.raises(pytest.UsageError, match=f"as in {option.flag}=FILE .*test_a.py"):
            read(**{short: str(tmp_path / "test_a.py")})


def test_no_two_files_are_one(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "r")
    file, link = str(tmp_path / "r"), str(tmp_path / "link")
    with pytest.raises(pytest.UsageError, match=r"sarif: .* is the file of --cuda-fork-json, too"):
        read(json=file, sarif=link)
    with pytest.raises(
        pytest.UsageError, match=r"trace: .* is the file of --cuda-fork-ledger, too"
    ):
        read(ledger=file, trace=file)
    with pytest.raises(
        pytest.UsageError, match=r"html: .* is the file of --cuda-fork-imports-graph, too"
    ):
        read(imports="pkg", imports_graph=f"{file}.html", html=f"{file}.html")
    for other in ("baseline", "profile", "pack"):
        with pytest.raises(pytest.UsageError, match=f"is the file of --cuda-fork-{other}, too"):
            read(check="fork", json=link, **{other: file})
    with pytest.raises(pytest.UsageError, match="is the file of --cuda-fork-imports-baseline, too"):
        read(imports="pkg", imports_baseline=file, json=file)
    assert read(profile=file, pack=file, json=f"{file}2").pack == file, "which are one on purpose"
    assert read(json=file, sarif=f"{file}2").sarif == f"{file}2"
    assert read(json=os.devnull, sarif=os.devnull).json == os.devnull, "a device takes both"


def test_a_page_without_what_makes_it_is_told_before_the_tests_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(pytest.UsageError, match=r"html: .*pip install pytest-cudafork\[html\]"):
        read(html=str(tmp_path / "page.html"))
    assert read(json=str(tmp_path / "s.json")).json, "which needs none of it"


def test_the_graph_of_an_audit_is_a_file_of_its_own_whatever_else_is_written(
    tmp_path: Path,
) -> None:
    file = str(tmp_path / "g.html")
    for other in ("imports_baseline", "ledger", "profile"):
        name = f"--cuda-fork-{other.replace('_', '-')}"
        with pytest.raises(pytest.UsageError, match=f"graph: .* is the file of {name}, too"):
            read(check="fork", imports="pkg", imports_graph=file, **{other: file})
    (tmp_path / "g.html").mkdir()
    with pytest.raises(pytest.UsageError, match=r"--cuda-fork-imports-graph: '.*' is a folder"):
        read(imports="pkg", imports_graph=file)


def test_no_file_is_that_of_another_plugin(tmp_path: Path) -> None:
    config: Any = SimpleNamespace(getini=lambda name: "")
    given = {option.name: None for option in OPTIONS_OF_ALL}
    file = str(tmp_path / "r.xml")
    namespace = SimpleNamespace(**{**given, "cuda_fork_json": file}, xmlpath=file)
    with pytest.raises(pytest.UsageError, match="is the file of --junitxml, too"):
        read_settings(config, namespace)
    namespace = SimpleNamespace(**{**given, "cuda_fork_html": file}, htmlpath=file)
    with pytest.raises(pytest.UsageError, match="is the file of --html, too"):
        read_settings(config, namespace)
    page = str(tmp_path / "report.html")
    audit = {"cuda_fork_imports": "pkg", "cuda_fork_imports_graph": page}
    namespace = SimpleNamespace(**{**given, **audit}, htmlpath=page)
    with pytest.raises(pytest.UsageError, match=r"imports-graph: .* is the file of --html, too"):
        read_settings(config, namespace)
