"""The benchmark of what is caught: what counts as caught, by whom, and what it writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.specimens.catalog import CATALOG
from tests.specimens.run import Outcome, alarm, is_told, names_the_line

SPECIMENS = {each.name: each for each in CATALOG}


@pytest.mark.slow
def test_a_touch_by_cuinit_is_seen_by_the_driver_and_by_us_and_not_by_torch(
    benchmark: Callable[[str], Any], tmp_path: Path
) -> None:
    methods = ("torch", "driver", "vllm", "present", "absent")
    found = benchmark("catch_forks").measure(SPECIMENS["sanity_check"], methods, tmp_path)
    assert {name: verdict.word for name, verdict in found.items()} == {
        "torch": "missed",
        "driver": "caught",
        "vllm": "missed",
        "present": "line",
        "absent": "line",
    }


@pytest.mark.slow
def test_a_fork_in_a_program_that_a_test_starts_is_asked_about_too(
    benchmark: Callable[[str], Any], tmp_path: Path
) -> None:
    found = benchmark("catch_forks").measure(SPECIMENS["server_script"], ["driver"], tmp_path)
    assert found["driver"].word == "caught"


def test_a_session_counts_as_told_only_with_its_status_and_words_and_line() -> None:
    specimen = SPECIMENS["sanity_check"]
    story = f"{specimen.expects_failure} {specimen.culprit_line} imported"
    assert is_told(specimen, Outcome(1, story))
    assert names_the_line(specimen, Outcome(1, story))
    assert not is_told(specimen, Outcome(0, story))
    assert not is_told(specimen, Outcome(1, "something else"))
    assert not names_the_line(specimen, Outcome(1, story.replace(" imported", "0 imported")))
    assert not names_the_line(specimen, Outcome(1, f"{specimen.culprit_line}, with no story"))


def test_a_fixed_form_alarms_where_it_fails_is_refused_or_blamed() -> None:
    specimen = SPECIMENS["sanity_check"]
    quiet = "forks guarded: 0, poisoned touches: 0\n"
    assert alarm(specimen, Outcome(0, quiet)) == ""
    assert alarm(specimen, Outcome(1, quiet)) == "exit status 1"
    assert "forks guarded" in alarm(specimen, Outcome(0, "forks guarded: 1"))
    assert alarm(specimen, Outcome(0, f"{quiet}{specimen.culprit}:3\n")).endswith("is named")


def test_verdicts_are_counted_and_written_by_kind(benchmark: Callable[[str], Any]) -> None:
    words = benchmark("catch_words")
    verdicts = {
        "line": words.Verdict(True, True, False),
        "missed, ALARM": words.Verdict(False, False, True),
    }
    assert [verdict.word for verdict in verdicts.values()] == list(verdicts)
    assert words.counts(verdicts.values()) == {
        "specimens": 2,
        "caught": 1,
        "right_line": 1,
        "false_alarms": 1,
    }
    assert words.rows({"one": {"torch": words.Verdict(True, False, False)}}, ("torch", "vllm")) == [
        ("one", "caught", "-")
    ]


def test_the_report_lists_misses_and_alarms_by_name(benchmark: Callable[[str], Any]) -> None:
    verdict = benchmark("catch_words").Verdict
    said = {"driver": verdict(True, False, True, "a reason"), "torch": verdict(False, False, False)}
    found = {"one": said, "pin_memory": {**said, "torch": verdict(True, False, False)}}
    text, data = benchmark("catch_rate").report(found, ("driver", "torch"), {})
    assert data["forks"]["missed"] == {"driver": [], "torch": ["one"]}
    assert data["forks"]["alarms"] == {"driver": ["one", "pin_memory"], "torch": []}
    assert "- one, driver: a reason" in text
    assert text.startswith("## Forks")
    assert "1 of these specimens touch without torch" in text
    assert "Of the other 1 it sees 1." in text
    assert json.loads(json.dumps(data)) == data


def test_the_guard_of_vllm_asks_nothing_of_a_bare_fork(benchmark: Callable[[str], Any]) -> None:
    assert not benchmark("catch_peers").vllm_guard()
