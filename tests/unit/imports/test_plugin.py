"""The audit's hooks: modules become tests, records are gathered, results are told and written."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from pytest_cudafork.imports.plugin import ImportAudit
from pytest_cudafork.settings.import_settings import ImportSettings
from tests.support.imports_in_process import run_here

TINY = ImportSettings(packages=("tiny",), jobs=2)
NAMED = "tiny::tiny.cold"


@pytest.mark.slow
def test_every_module_is_a_test_and_the_section_tells_what_was_found(
    pytester: pytest.Pytester,
) -> None:
    ran = run_here(pytester, TINY)
    assert ran.outcomes == {
        "tiny::tiny": "passed",
        "tiny::tiny.broken": "skipped",
        "tiny::tiny.cold": "passed",
        "tiny::tiny.hot": "failed",
    }
    assert ran.status == pytest.ExitCode.TESTS_FAILED
    assert "audit of the imports of tiny (4 modules), phantom (sm_90), 2 at a time" in ran.out
    assert "tiny: 4 modules: 2 clean, 1 initialize CUDA, 1 not importable" in ran.out
    assert "tiny/hot.py:1 (module body): 1 module" in ran.out


@pytest.mark.slow
def test_only_what_is_named_runs(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_one(): pass")
    ran = run_here(pytester, TINY, NAMED)
    assert ran.outcomes == {NAMED: "passed"}
    assert ran.status == pytest.ExitCode.OK
    assert isinstance(ran.audit, ImportAudit)
    assert ran.audit.alone
    assert ran.audit.is_wanted


@pytest.mark.slow
def test_paths_keep_an_audit_of_the_ini_file_away(pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile("def test_one(): pass")
    audit = run_here(pytester, TINY, path).audit
    assert isinstance(audit, ImportAudit)
    assert not audit.alone
    assert not audit.is_wanted


@pytest.mark.slow
def test_the_baseline_is_written_and_accepts_what_it_holds(pytester: pytest.Pytester) -> None:
    file = str(pytester.path / "known.toml")
    updated = run_here(pytester, TINY._replace(baseline=file, update=True), "-k", "hot or cold")
    assert updated.outcomes["tiny::tiny.hot"] == "xfailed"
    assert updated.status == pytest.ExitCode.OK
    assert f"baseline: {file} (1 entry)" in updated.out
    accepted = run_here(pytester, TINY._replace(baseline=file), "-k", "hot")
    assert accepted.outcomes == {"tiny::tiny.hot": "xfailed"}
    assert isinstance(accepted.audit, ImportAudit)
    node = SimpleNamespace(workerinput={})
    accepted.audit.pytest_configure_node(node)
    (text,) = node.workerinput.values()
    accepted_there = [["tiny.hot", "tiny/hot.py:1", ""]]
    assert json.loads(text) == {"accepted": accepted_there, "reached": [], "few": False}


def test_what_cannot_be_written_fails_a_session_that_passed(pytester: pytest.Pytester) -> None:
    (pytester.path / "g.html").mkdir()
    ran = run_here(pytester, TINY._replace(graph=str(pytester.path / "g.html")), NAMED)
    assert ran.outcomes == {NAMED: "passed"}
    assert ran.status == pytest.ExitCode.TESTS_FAILED
    assert "the graph cannot be written: " in ran.out


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"packages": ("tinny",)}, "--cuda-fork-imports: There is no module 'tinny'"),
        ({"without": ("sys",)}, "--cuda-fork-imports-without: sys cannot be hidden"),
        ({"baseline": "/no/such.toml"}, "--cuda-fork-imports-baseline: /no/such.toml: there is no"),
    ],
)
def test_wrong_options_are_usage_errors(
    pytester: pytest.Pytester, change: dict[str, object], words: str
) -> None:
    ran = run_here(pytester, TINY._replace(**change))  # type: ignore[arg-type]
    assert ran.status == pytest.ExitCode.USAGE_ERROR
    assert words in ran.out
    assert ran.outcomes == {}
