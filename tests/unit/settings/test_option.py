"""What an option is: its three names, and which of its sources counts."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_cudafork.settings.option import (
    Option,
    parse_file,
    parse_modules,
    read_option,
    read_table,
    uses_debugger,
)


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.from_regex(r"\A[a-z_][a-z0-9_]*(\.[a-z_]+)?\Z").filter(lambda t: "\n" not in t)))
def test_modules_are_separated_by_commas(names: list[str]) -> None:
    assert parse_modules(" , ".join(names)) == tuple(names)


PLAIN = Option("cuda_fork_thing", "THING", "A thing.")
LIST = Option("cuda_fork_things", "THINGS", "Things.", lines=True)


class Ini:
    """An ini file, as far as options are read from it."""

    inipath: Path | None = None

    def __init__(self, **values: object) -> None:
        self.values = values
        self.invocation_params = SimpleNamespace(dir=Path("/started/here"))

    def getini(self, name: str) -> object:
        """Return what pytest returns for a declared option."""
        return self.values.get(name, "")


def read(option: Option, ini: Ini, given: str | None = None, parse: Any = str) -> Any:
    """Read an option from an ini file and a command line."""
    namespace = SimpleNamespace(**{option.name: given})
    return read_option(cast(pytest.Config, ini), namespace, option, parse)


def test_a_file_in_the_ini_file_is_relative_to_that(monkeypatch: pytest.MonkeyPatch) -> None:
    file = Option("cuda_fork_file", "FILE", "A file.")
    ini = Ini(cuda_fork_file="known.toml")
    assert read(file, ini) == "/started/here/known.toml", "given by -o where there is no ini file"
    ini.inipath = Path("/project/pytest.ini")
    assert read(file, ini) == "/project/known.toml"
    assert read(file, Ini(cuda_fork_file="/else/where.toml")) == "/else/where.toml"
    assert read(file, ini, given="typed.toml") == "typed.toml"
    monkeypatch.setenv(file.env, "env.toml")
    assert read(file, ini) == "env.toml"


def test_an_option_has_three_names() -> None:
    names = (PLAIN.flag, PLAIN.env, PLAIN.name)
    assert names == ("--cuda-fork-thing", "PYTEST_CUDA_FORK_THING", "cuda_fork_thing")


def test_the_command_line_comes_before_the_environment_before_the_ini_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ini = Ini(cuda_fork_thing="ini")
    assert read(PLAIN, Ini()) is None
    assert read(PLAIN, ini) == "ini"
    monkeypatch.setenv(PLAIN.env, "environment")
    assert read(PLAIN, ini) == "environment"
    assert read(PLAIN, ini, "command line") == "command line"


def test_a_list_of_the_ini_file_is_read_as_one_text() -> None:
    assert read(LIST, Ini(cuda_fork_things=["a", "b"])) == "a,b"


def test_a_number_in_a_list_of_the_ini_file_is_read_as_its_text() -> None:
    assert read(LIST, Ini(cuda_fork_things=["a", 1])) == "a,1"


@pytest.mark.parametrize("given", [["a"], ["a", "b"], [0, 2]])
def test_a_list_for_an_option_that_takes_one_text_is_a_usage_error(given: list[object]) -> None:
    with pytest.raises(pytest.UsageError, match=r"^ini option cuda_fork_thing: \[.*\] is a list"):
        read(PLAIN, Ini(cuda_fork_thing=given))
    assert read(PLAIN, Ini(cuda_fork_thing=given), "typed") == "typed"


def test_empty_counts_where_somebody_typed_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PLAIN.env, "")
    assert read(PLAIN, Ini(cuda_fork_thing="ini")) == "ini"
    assert read(PLAIN, Ini(cuda_fork_thing="ini"), "") == ""


@pytest.mark.parametrize(
    ("given", "variable", "source"),
    [
        ("x", None, "--cuda-fork-thing"),
        (None, "x", "PYTEST_CUDA_FORK_THING"),
        (None, None, "ini option cuda_fork_thing"),
    ],
)
def test_a_wrong_value_names_its_source(
    given: str | None, variable: str | None, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable is not None:
        monkeypatch.setenv(PLAIN.env, variable)
    with pytest.raises(pytest.UsageError, match=f"^{source}: invalid literal"):
        read(PLAIN, Ini(cuda_fork_thing="x"), given, int)


def test_a_table_gives_the_values_that_there_are() -> None:
    table = {"thing": (PLAIN, int), "things": (LIST, str)}
    namespace = SimpleNamespace(cuda_fork_thing="7", cuda_fork_things=None)
    assert read_table(cast(pytest.Config, Ini()), namespace, table) == {"thing": 7}


def test_a_file_is_made_absolute_and_none_stays_none() -> None:
    assert parse_file("") == ""
    assert parse_file("x") == os.path.join(os.getcwd(), "x")


@pytest.mark.parametrize("text", ["a-b", "1", "a..b", "a b"])
def test_a_module_is_a_dotted_name(text: str) -> None:
    with pytest.raises(ValueError, match="is not a module name: name it as in an import, not by"):
        parse_modules(text)


def test_a_file_that_is_here_is_no_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "test_op.py").touch()
    monkeypatch.chdir(tmp_path)
    assert parse_modules("pkg.py, py") == ("pkg.py", "py")
    with pytest.raises(ValueError, match=r"'test_op\.py' is not a module name: name it as in an"):
        parse_modules("test_op.py")


def test_a_debugger_takes_part_if_one_of_its_options_is_on() -> None:
    def used(**options: bool) -> bool:
        return uses_debugger(
            cast(pytest.Config, SimpleNamespace(option=SimpleNamespace(**options)))
        )

    assert used(usepdb=True, trace=False)
    assert used(usepdb=False, trace=True)
    assert not used(usepdb=False, trace=False)
    assert not used(), "with -p no:debugging there are no such options"
