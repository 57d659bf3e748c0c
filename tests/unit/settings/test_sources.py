"""Where the value of an option comes from, as the header says it with ``-v``."""

from __future__ import annotations

import pytest

from pytest_cudafork.settings.options import CHECK, GPUS, LEDGER, OPTIONS
from pytest_cudafork.settings.sources import in_vain, source_lines

INI = "[pytest]\ncuda_fork_check = poison\naddopts = --cuda-fork-gpus=2\n"
PROJECT = '[tool.pytest.ini_options]\ncuda_fork_check = "poison"\n'


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what a test sets counts."""
    for option in OPTIONS:
        monkeypatch.delenv(option.env, raising=False)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)


def lines(pytester: pytest.Pytester, *args: str) -> list[str]:
    """Return the lines of a session with these arguments; the check is not begun."""
    config = pytester.parseconfig(*args)
    return source_lines(config, OPTIONS)


def test_without_any_option_nothing_is_said(pytester: pytest.Pytester) -> None:
    assert lines(pytester) == []


def test_each_source_has_its_words(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeini(INI)
    assert lines(pytester) == [
        "cuda-fork-check: poison, from tox.ini",
        "cuda-fork-gpus: 2, from addopts in tox.ini",
    ]
    monkeypatch.setenv(CHECK.env, "fork")
    assert lines(pytester)[0] == f"cuda-fork-check: fork, from the environment ({CHECK.env})"
    monkeypatch.setenv("PYTEST_ADDOPTS", "--cuda-fork-ledger=l --cuda-fork-gpus=1")
    assert lines(pytester, "--cuda-fork-check=touch", "-o", "cuda_fork_graphs=software") == [
        "cuda-fork-check: touch, from the command line",
        "cuda-fork-ledger: l, from PYTEST_ADDOPTS",
        "cuda-fork-gpus: 1, from PYTEST_ADDOPTS",
        "cuda-fork-graphs: software, from the command line (-o)",
    ]


def test_a_variable_that_only_looks_like_that_of_an_option_is_in_vain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in (CHECK.env, "PYTEST_CUDA_FORK_RUN", "PYTEST_CUDA", "PYTEST_CUDA_FORK_CHEK"):
        monkeypatch.setenv(name, "fork")
    monkeypatch.setenv("PYTEST_CUDA_FORK_NOTHING", "")
    told = "nothing reads the variable PYTEST_CUDA_FORK_CHEK: there is no such option. "
    assert in_vain(OPTIONS) == [f"{told}Did you mean {CHECK.env}?"]


def test_what_is_empty_says_so(pytester: pytest.Pytester) -> None:
    assert lines(pytester, f"{LEDGER.flag}=") == [
        "cuda-fork-ledger: (empty), from the command line"
    ]


def test_an_option_in_a_response_file_is_on_the_command_line(pytester: pytest.Pytester) -> None:
    pytester.path.joinpath("args").write_text(f"{GPUS.flag}=3\n")
    version = tuple(int(part) for part in pytest.__version__.split(".")[:2])
    if version >= (8, 2):  # which takes such files
        assert lines(pytester, "@args") == ["cuda-fork-gpus: 3, from the command line"]


@pytest.mark.parametrize("native", [False, True], ids=["ini_options", "native"])
def test_a_project_file_is_read_in_both_forms(pytester: pytest.Pytester, *, native: bool) -> None:
    if native and int(pytest.__version__.split(".")[0]) < 9:
        text = PROJECT  # that form came with pytest 9
    else:
        text = PROJECT.replace(".ini_options", "") if native else PROJECT
    pytester.makepyprojecttoml(f'{text}cuda_fork_allow = ["one.two", "three"]\n')
    assert lines(pytester) == [
        "cuda-fork-check: poison, from pyproject.toml",
        "cuda-fork-allow: one.two,three, from pyproject.toml",
    ]


def test_an_ini_file_elsewhere_is_named_in_full(pytester: pytest.Pytester) -> None:
    other = pytester.mkdir("elsewhere") / "other.ini"
    other.write_text("[pytest]\ncuda_fork_check = poison\n")
    root = f"--rootdir={pytester.path}"
    assert lines(pytester, "-c", str(other), root) == [f"cuda-fork-check: poison, from {other}"]
