"""The audit's tests: which are taken from the arguments, selected, and what becomes of each."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

import pytest_cudafork
from pytest_cudafork.imports.items import select, take_names
from pytest_cudafork.imports.values.targets import Target
from pytest_cudafork.settings.import_settings import ImportSettings
from tests.support.imports_in_process import run_here

TINY = ImportSettings(packages=("tiny",), jobs=2)
TARGETS = [
    Target("pkg", "pkg.a"),
    Target("pkg", "pkg.b"),
    Target("pkg", "pkg.a", "lib"),
    Target("pkg", "pkg.b", "lib"),
]


@pytest.mark.parametrize("base", ["pkg", "./pkg", "sub/../pkg", "/base/pkg"])
def test_names_of_the_audits_tests_are_taken_out_of_the_arguments(base: str) -> None:
    config = SimpleNamespace(
        rootpath=Path("/base"),
        args=["tests", f"{base}::pkg.a", "tests/test_a.py::test_one", "pkg"],
        invocation_params=SimpleNamespace(dir=Path("/base")),
    )
    assert take_names(cast("pytest.Config", config), ["pkg"]) == ["pkg::pkg.a"]
    assert config.args == ["tests", "tests/test_a.py::test_one", "pkg"]


def test_a_module_stands_for_all_its_tests_and_the_order_stays() -> None:
    assert select(TARGETS, []) == TARGETS
    assert select(TARGETS, ["pkg::pkg.b", "pkg::pkg.a[without lib]"]) == TARGETS[1:]
    with pytest.raises(pytest.UsageError, match=r"not found: pkg::pkg.c\n.* 4 tests"):
        select(TARGETS, ["pkg::pkg.a", "pkg::pkg.c"])


@pytest.mark.slow
def test_the_outcome_is_that_of_the_verdict_and_the_text_is_the_story(
    pytester: pytest.Pytester,
) -> None:
    ran = run_here(pytester, TINY, "-rs")
    assert set(ran.outcomes.values()) == {"passed", "skipped", "failed"}
    assert "tiny.hot: the import initializes CUDA" in ran.out
    assert "ModuleNotFoundError: No module named 'no_such_library'" in ran.out
    assert str(Path(pytest_cudafork.__file__).parent) not in ran.out, "a frame of the audit"


@pytest.mark.slow
def test_options_change_what_a_verdict_means(pytester: pytest.Pytester) -> None:
    file = pytester.path / "known.toml"
    file.write_text('[tiny]\n"tiny.hot" = "tiny/hot.py:1"\n')
    settings = TINY._replace(strict=True, baseline=str(file))
    ran = run_here(pytester, settings, "-k", "hot or broken", "-rx")
    assert ran.outcomes == {"tiny::tiny.hot": "xfailed", "tiny::tiny.broken": "failed"}
    assert "in the baseline known.toml" in ran.out
    shown = run_here(pytester, settings, "-k", "hot", "--runxfail")
    assert shown.outcomes == {"tiny::tiny.hot": "failed"}


def test_what_cannot_be_observed_is_an_error(pytester: pytest.Pytester) -> None:
    (pytester.mkpydir("odd") / "__init__.py").write_text("import signal; signal.getitimer = None")
    ran = run_here(pytester, TINY._replace(packages=("odd",)))
    assert ran.outcomes == {"odd::odd": "error"}
    assert "not observable: odd has broken the interpreter: TypeError" in ran.out
