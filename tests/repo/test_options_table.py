"""The options are those listed here: a new one needs an edit here and a row in the docs."""

from __future__ import annotations

import re

import pytest

from pytest_cudafork.settings.option import Option
from pytest_cudafork.settings.options import OPTIONS
from tests.repo.sources import DOCS

NAMES = {
    "cuda_fork_allow",
    "cuda_fork_baseline",
    "cuda_fork_baseline_update",
    "cuda_fork_captures",
    "cuda_fork_check",
    "cuda_fork_device",
    "cuda_fork_expect_gpus",
    "cuda_fork_github",
    "cuda_fork_gpus",
    "cuda_fork_graphs",
    "cuda_fork_health",
    "cuda_fork_html",
    "cuda_fork_imports",
    "cuda_fork_imports_baseline",
    "cuda_fork_imports_exclude",
    "cuda_fork_imports_graph",
    "cuda_fork_imports_jobs",
    "cuda_fork_imports_memory",
    "cuda_fork_imports_since",
    "cuda_fork_imports_strict",
    "cuda_fork_imports_timeout",
    "cuda_fork_imports_update",
    "cuda_fork_imports_without",
    "cuda_fork_intent",
    "cuda_fork_isolate",
    "cuda_fork_isolate_scope",
    "cuda_fork_isolate_timeout",
    "cuda_fork_json",
    "cuda_fork_ledger",
    "cuda_fork_marker_map",
    "cuda_fork_pack",
    "cuda_fork_profile",
    "cuda_fork_sarif",
    "cuda_fork_settle",
    "cuda_fork_trace",
}
PAGE = DOCS / "reference" / "options.md"


def test_the_options_are_pinned() -> None:
    assert {option.name for option in OPTIONS} == NAMES


def test_every_option_has_a_name_of_its_own_kind() -> None:
    for option in OPTIONS:
        assert re.fullmatch(r"cuda_fork_[a-z_]+", option.name)
        assert re.fullmatch(r"--cuda-fork-[a-z-]+", option.flag)
        assert re.fullmatch(r"PYTEST_CUDA_FORK_[A-Z_]+", option.env)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda o: o.name)
def test_the_reference_has_a_row_with_all_three_spellings(option: Option) -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    spellings = (f"`{option.flag}", f"`{option.env}`", f"`{option.name}`")
    assert any(all(text in row for text in spellings) for row in rows), (
        f"{PAGE} has no row with {', '.join(spellings)}"
    )
