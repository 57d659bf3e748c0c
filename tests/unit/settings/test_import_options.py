"""The values of the import audit's options."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_cudafork.settings.import_options import (
    IMPORT_OPTIONS,
    NO,
    YES,
    check,
    parse_flag,
    parse_graph,
    parse_jobs,
    parse_libraries,
    parse_patterns,
    parse_ref,
    parse_seconds,
    parse_size,
    read_imports,
)
from pytest_cudafork.settings.import_settings import ImportSettings


@settings(deadline=None)
@given(st.one_of(st.text(), st.from_regex(r"\A[0-9]{1,3}(\.[0-9])?[KMGT]?(i?B)?\Z")))
def test_a_size_is_a_number_with_a_unit_and_everything_else_is_a_value_error(text: str) -> None:
    try:
        size = parse_size(text)
    except ValueError as error:
        words = str(error)
    else:
        assert size >= 0
        assert parse_size(str(size)) == size
        return
    assert repr(text) in words


@pytest.mark.parametrize("text", ["", "x", "0", "-1", "nan", "inf", "1e999"])
def test_seconds_are_a_number_above_0(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number of seconds above 0"):
        parse_seconds(text)


@pytest.mark.parametrize("text", ["", "x", "0", "-1", "1.5", "\u00b2"])
def test_jobs_are_auto_or_a_number_above_0(text: str) -> None:
    with pytest.raises(ValueError, match="use auto, or a number above 0"):
        parse_jobs(text)


@settings(deadline=None)
@given(st.text())
def test_a_flag_is_yes_or_no_and_everything_else_is_a_value_error(text: str) -> None:
    if text.lower() in (*YES, *NO):
        assert parse_flag(text) is (text.lower() in YES)
    else:
        with pytest.raises(ValueError, match="is neither yes nor no"):
            parse_flag(text)


@pytest.mark.parametrize("text", ["a-b", "a b", "a+", "+", "a++b", "1"])
def test_a_library_to_hide_is_a_module_or_several_joined_by_a_plus(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a (module name|library)"):
        parse_libraries(text)


@pytest.mark.parametrize("text", ["a b", "a/b", "a:*"])
def test_a_pattern_that_can_match_no_module_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a pattern of module names"):
        parse_patterns(text)


@pytest.mark.parametrize("text", ["x.png", "html", "x"])
def test_a_picture_is_html_or_dot(text: str) -> None:
    with pytest.raises(ValueError, match=r"name a file that ends in \.html or \.dot"):
        parse_graph(text)
    assert parse_graph(f"{text}.dot").endswith(f"/{text}.dot")
    assert parse_graph("") == ""


@pytest.mark.parametrize("text", ["", " ", "--output=x"])
def test_a_commit_has_a_name_that_is_no_option(text: str) -> None:
    with pytest.raises(ValueError, match="is not the name of a commit"):
        parse_ref(text)
    assert parse_ref(" HEAD~1 ") == "HEAD~1"


def test_what_does_not_go_together_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--update: there is no file to write: name it with --b="):
        check(ImportSettings(("pkg",), update=True), "--update", "--b")
    with pytest.raises(ValueError, match="there is no folder '/no'"):
        check(ImportSettings(("pkg",), graph="/no/g.dot"))
    check(ImportSettings(("pkg",), graph=f"{tmp_path}/g.dot", baseline="b", update=True))


class NoIni:
    """A configuration without an ini file."""

    inipath = None

    def getini(self, name: str) -> Any:
        return ""


@pytest.mark.parametrize("elsewhere", [False, True])
def test_how_to_audit_is_in_vain_where_nothing_says_what(
    elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for option in IMPORT_OPTIONS:
        monkeypatch.delenv(option.env, raising=False)
    namespace = argparse.Namespace(cuda_fork_imports_jobs="2")
    config = cast(pytest.Config, NoIni())
    if elsewhere:  # the controller has said it
        assert read_imports(config, namespace, elsewhere=True).jobs == 2
        return
    with pytest.raises(pytest.UsageError, match=r"-jobs: no package is audited: name it with --cu"):
        read_imports(config, namespace)
    for packages in ("", "pkg"):
        namespace.cuda_fork_imports = packages
        assert read_imports(config, namespace).jobs == 2
