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
        f"After the repair {silent} were silent, the missed one among them; the other "
        f"{WORDS[ran - silent]} still",
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
    forks = record("catch_rate_gpu_2026-11-30_2")["forks"]["totals"]["gpu"]
    graphs = record("catch_rate_gpu_2026-11-30_2")["graphs"]["totals"]
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
    of = record("touch_table_gpu_2026-11-30_2")
    assert (of["seen_by_probe"], of["false_alarms"]) == (of["poisoning"], 0)
    return (
        f"torch's own flag sees {of['seen_by_torch']} of the {of['poisoning']} kinds of touch",
        f"without a false alarm on the others of the {of['cases']} calls",
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


ENGINE = "docs/reference/engine"
PLACES = [
    (
        "docs/how-to/from-sglang-worker.md",
        "six files that import torch took 0.147 of the time here that they take by Python",
        "record_cpu_2026-11-29_2",
        ("6 files that import torch, by worker, to Python | 0.147",),
    ),
    (
        "docs/how-to/from-cuml-hook.md",
        "| the hook, `-n1` | 5 | 97 |",
        "helpers_of_others_cpu_2026-11-23",
        ("| the hook, `-n1` | 5 failed, 97 passed |",),
    ),
    (
        f"{ENGINE}/speculation.md",
        "takes 0.45 of the time with `eagle` and five drafts, and 0.50 with `ngram`",
        "record_cpu_2026-11-29",
        (
            "time of a token with eagle k=5, to none | 0.454",
            "time of a token with ngram k=5, to none | 0.500",
        ),
    ),
    (
        "docs/how-to/gpus.md",
        "took 1.12 (one card) and 1.14 (two cards) of the time of the best packing",
        "record_cpu_2026-11-29",
        (
            "1 GPUs packed, to the best packing found | 1.117",
            "2 GPUs packed, to the best packing found | 1.135",
        ),
    ),
    (
        f"{ENGINE}/speculation.md",
        "2.0 to 2.6 times the tokens with a speculator for one request, and 1.5 to 2.0 times for "
        "32 ",
        "speculation_gpu_2026-11-30_2",
        ("264 | 1.97", "349 | 2.61", "5679 | 1.54", "7474 | 2.02"),
    ),
    (
        f"{ENGINE}/speculation.md",
        "2.20 times the tokens with `eagle` and five drafts for one request, and 1.93 times for "
        "32; with `ngram` 1.75 and 1.21 times ",
        "speculation_gpu_2026-12-01",
        ("12225 | 2.20", "130082 | 1.93", "9732 | 1.75", "81566 | 1.21"),
    ),
    (
        f"{ENGINE}/speculation.md",
        "takes 1.477 times one without, 1.274 times with a draft vocabulary of 32,000, and one "
        "with n-gram drafts 1.021 times ",
        "engine_speculation_gpu_2026-12-01",
        ("6.381 | 1.477", "5.505 | 1.274", "4.412 | 1.021"),
    ),
    (
        f"{ENGINE}/steps.md",
        "took 0.978 of its time in the caller's process, and 4.115 ms in place of 4.239 ms",
        "engine_async_gpu_2026-12-01",
        ("4.123 | 0.978", "4.115 | 0.976", "4.239 | 1.006"),
    ),
    (
        f"{ENGINE}/steps.md",
        "one of the tiny model took 0.912 ms in place of 0.792 ms",
        "engine_async_gpu_2026-11-24",
        ("inproc 0.792, asynchronous 0.912",),
    ),
    (
        f"{ENGINE}/steps.md",
        "12225 tokens/s with `eagle` and five drafts at batch 1 (11841 to 12628), and 130082 at "
        "batch 32 (128180 to 137830); without speculation 5569 (5380 to 5581) and 67333 (66674 to "
        "68668)",
        "speculation_gpu_2026-12-01",
        (
            "| 1, eagle k=5, FULL_AND_PIECEWISE | 12225 |",
            "| 32, eagle k=5, FULL_AND_PIECEWISE | 130082 |",
            "| 1, none, FULL_AND_PIECEWISE | 5569 |",
            "| 32, none, FULL_AND_PIECEWISE | 67333 |",
        ),
    ),
    (
        f"{ENGINE}/processes.md",
        "3.00 ms for a decode step of one sequence, 4.72 on one of them, and 460 ms for 8 prompts "
        "of 4096 tokens, 792 on one: 1.57 and 1.72 times",
        "tensor_parallel_gpu_2026-11-30_2",
        ("4.72 (1.00x, 0 %) | 3.00 (1.57x", "792 (1.00x, 0 %) | 460 (1.72x"),
    ),
    (
        f"{ENGINE}/processes.md",
        "two H100s were 1.42 and 1.62 times one, without 1.61 and 1.71",
        "tensor_parallel_gpu_2026-11-24",
        ("4.38 (1.42x", "491 (1.62x", "3.75 (1.61x", "465 (1.71x"),
    ),
    (
        f"{ENGINE}/processes.md",
        "2.71 ms for the step and 294 ms for the prompts, where one took 4.58 and 803: 1.69 and "
        "2.73 times; the sums were 20 % of the step and 30 % of the prompts",
        "tensor_parallel_gpu_2026-11-27",
        ("4.58 (1.00x", "2.71 (1.69x, 20 %)", "803 (1.00x", "294 (2.73x, 30 %)"),
    ),
]


@pytest.mark.parametrize(("page", "said", "name", "held"), PLACES)
def test_a_figure_is_that_of_its_row(
    page: str, said: str, name: str, held: tuple[str, ...]
) -> None:
    assert said in " ".join((PROJECT / page).read_text(encoding="utf-8").split())
    text = " ".join((RESULTS / f"{name}.md").read_text(encoding="utf-8").split())
    assert [words for words in held if words not in text] == []
