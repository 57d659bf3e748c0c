"""Each report of the corpus is a specimen, is shown by one, or has a reason why it is not."""

from __future__ import annotations

import pytest

from tests.specimens import corpus_map
from tests.specimens.corpus import FORK_BUGS
from tests.specimens.graphs.corpus import GRAPH_BUGS

ROWS = 139
"""Reports that were read."""

BUGS = {**FORK_BUGS, **GRAPH_BUGS}


def test_there_are_as_many_reports_as_were_read() -> None:
    assert len(FORK_BUGS) + len(GRAPH_BUGS) == len(BUGS) == ROWS


def test_every_report_has_its_place_and_none_is_unknown() -> None:
    assert corpus_map.places().keys() == BUGS.keys()


def test_the_file_holds_only_reports_that_no_specimen_was_made_after() -> None:
    made_after = {bug for bug, place in corpus_map.places().items() if place.made_after}
    tables = corpus_map.read()
    assert set(tables) == {"shown", "not_shown"}
    for rows in tables.values():
        assert not made_after & rows.keys()
        assert list(rows) == sorted(rows)
    assert not tables["shown"].keys() & tables["not_shown"].keys()


@pytest.mark.parametrize(("bug", "name"), corpus_map.read()["shown"].items())
def test_the_specimen_that_shows_it_exists_and_is_of_its_half(bug: str, name: str) -> None:
    assert name in corpus_map.SPECIMENS
    half = FORK_BUGS if bug in FORK_BUGS else GRAPH_BUGS
    assert corpus_map.SPECIMENS[name] in half.values()


@pytest.mark.parametrize(("bug", "reason"), corpus_map.read()["not_shown"].items())
def test_a_reason_is_a_sentence_that_names_only_what_exists(bug: str, reason: str) -> None:
    assert reason[0].isupper() or reason.startswith("torch's")
    assert reason.endswith(".")
    named = {word.strip(".;,") for word in reason.split() if "_" in word}
    assert named <= corpus_map.SPECIMENS.keys()
    others = {word.strip(".;,") for word in reason.split() if "#" in word}
    assert others <= BUGS.keys() - {bug}


def test_every_mechanism_has_a_specimen_made_after_one_of_its_reports() -> None:
    shown = {BUGS[bug] for bug, place in corpus_map.places().items() if place.made_after}
    assert shown == set(BUGS.values())


def test_the_page_of_the_documentation_is_up_to_date() -> None:
    assert corpus_map.PAGE.read_text(encoding="utf-8") == corpus_map.render(), (
        "docs/reference/corpus.md is old: run `python -m tests.specimens.corpus_map`"
    )
