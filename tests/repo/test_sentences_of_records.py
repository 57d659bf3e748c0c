"""The counts of the main sentences are those of their record, each in its place.

``test_figures.py`` finds a number anywhere in a record; small ones are found there too easily.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.repo.sources import PROJECT

RESULTS = PROJECT / "benchmarks" / "results"
WORDS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
FINDINGS, ISOLATION, MEASURED, TOUCH = (
    f"docs/explanation/{name}.md"
    for name in ("findings", "isolation", "measured", "what-is-a-touch")
)


def record(name: str) -> dict[str, Any]:
    """Return the line of JSON of a record."""
    lines = (RESULTS / f"{name}.md").read_text(encoding="utf-8").splitlines()
    found: dict[str, Any] = json.loads(next(each for each in lines if each.startswith("{")))
    return found


def releases() -> tuple[str, ...]:
    """Return what is said of pairs of releases."""
    of = record("release_pairs_cpu_2026-11-24")["totals"]
    ran, told, silent = of["ran"], of["told_before"], of["silent_after"]
    return (
        f"Of {of['pairs']} pairs {ran} ran.",
        f"In {told} of them the release with the bug was told, in {of['right_line']} by the line",
        f"and in {told - of['right_line']} by another",
        f"{WORDS[ran - told].capitalize()} was missed",
        f"After the repair {silent} were silent; the other {WORDS[ran - silent]} still",
        f"torch's flag was True in {of['flag_before']} of the {ran}.",
    )


def faults() -> tuple[str, ...]:
    """Return what is said of the campaign of faults."""
    of = record("faults_whole_cpu_2026-11-28")
    kept = {method: each["all five"] for method, each in of["totals"].items()}
    ours = [kept[f"{way}{n}"] for way in ("fork", "forkserver", "spawn") for n in ("", " -n 2")]
    assert set(ours) == {of["faults"]}
    return (
        f"has {of['faults']} tests that crash",
        f"All five were kept for all {of['faults']} by all {WORDS[len(ours)]} ways",
        f"pytest-forked kept them for {kept['pytest-forked']},",
        f"pytest-isolated for {kept['pytest-isolated']},",
        f"pytest-isolate for {kept['pytest-isolate']} (",
        f"for {kept['helper-fork']} (fork) and {kept['helper-spawn']} (spawn)",
        f"and pytest alone for {kept['none']}.",
    )


def caught() -> tuple[str, ...]:
    """Return what is said of specimens on a GPU."""
    forks = record("catch_rate_gpu_2026-11-24")["forks"]["totals"]["gpu"]
    graphs = record("catch_rate_graphs_gpu_2026-11-24")["graphs"]["totals"]
    checks = graphs["checks"]
    assert (forks["right_line"], forks["false_alarms"]) == (forks["specimens"], 0)
    assert (checks["right_line"], checks["false_alarms"]) == (checks["specimens"], 0)
    return (
        f"our check told all {forks['specimens']} by their line, and none of the repairs",
        f"the checks told all {checks['specimens']} buggy specimens",
        f"a look at plain programs told {graphs['look']['caught']}, torch by itself "
        f"{graphs['capture']['caught']} ",
        f"five promises for each of {record('faults_whole_cpu_2026-11-28')['faults']} faults",
    )


def touches() -> tuple[str, ...]:
    """Return what is said of the kinds of touch."""
    of = record("touch_table_h200_2026-11-21")
    assert (of["seen_by_probe"], of["false_alarms"]) == (of["poisoning"], 0)
    return (
        f"torch's own flag sees {of['seen_by_torch']} of the {of['poisoning']} kinds of touch",
        f"on the {of['cases'] - of['poisoning']} harmless calls",
    )


@pytest.mark.parametrize(
    ("page", "said"),
    [(FINDINGS, releases), (ISOLATION, faults), (MEASURED, caught), (TOUCH, touches)],
)
def test_the_page_says_what_the_record_counts(page: str, said: Any) -> None:
    text = " ".join((PROJECT / page).read_text(encoding="utf-8").split())
    missing = [words for words in said() if words not in text]
    assert not missing


def test_the_modules_of_vllm_are_those_of_the_audit() -> None:
    table = (RESULTS / "imports_vllm_cpu_2026-11-21.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    count = {row[0]: row[1] for row in rows if len(row) == 2}
    place = "vllm/v1/attention/backends/flash_attn.py:175"
    readme = (PROJECT / "README.md").read_text(encoding="utf-8")
    assert f"{place} (class body): {count[place]} modules" in readme
    findings = (PROJECT / FINDINGS).read_text(encoding="utf-8")
    assert f"| `{place}` (vLLM 0.11.0) | class body | {count[place]} modules |" in findings
