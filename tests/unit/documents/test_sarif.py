"""SARIF: valid, relative to the checkout, the same problem the same when lines move."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pydantic", reason="pydantic validates what is written")

from pydantic import ValidationError

from pytest_cudafork.documents.problem import NOTE, Place, Problem
from pytest_cudafork.documents.sarif import sarif_log, write_sarif
from tests.support.documents import read_sarif


def problem(root: Path, line: int = 3, **about: Any) -> Problem:
    """Return a problem of a file with a blank and an umlaut in its name."""
    place = Place(str(root / "my ünit.py"), line)
    made = Problem("touch", "error", f"touched at my ünit.py:{line}", "the story", place)
    return made._replace(**about)


def test_a_result_has_its_rule_line_story_and_way(tmp_path: Path) -> None:
    outside = Place("/usr/lib/torch.py", 9)
    given = problem(tmp_path, steps=((outside, "imports"),), test="test_a.py::test_a")
    (result,) = read_sarif(sarif_log([given], str(tmp_path), successful=True))
    assert result["message"] == {"text": "the story"}
    assert result["level"] == "error"
    (location,) = result["locations"]
    assert location["physicalLocation"] == {
        "artifactLocation": {"uri": "my%20%C3%BCnit.py", "uriBaseId": "SRCROOT"},
        "region": {"startLine": 3},
    }
    (step,) = result["codeFlows"][0]["threadFlows"][0]["locations"]
    artifact = step["location"]["physicalLocation"]["artifactLocation"]
    assert artifact == {"uri": "file:///usr/lib/torch.py"}
    assert step["location"]["message"] == {"text": "imports"}
    assert result["properties"] == {"test": "test_a.py::test_a"}
    assert "suppressions" not in result


def test_what_is_accepted_is_suppressed_and_without_a_line_the_file_of_the_test_is_shown(
    tmp_path: Path,
) -> None:
    given = problem(tmp_path, place=None, story="", level=NOTE, accepted="in the baseline")
    (result,) = read_sarif(sarif_log([given], str(tmp_path), successful=False))
    assert result["suppressions"] == [{"kind": "external", "justification": "in the baseline"}]
    assert result["message"]["text"].startswith("touched at")
    (location,) = result["locations"]
    place = location["physicalLocation"]
    assert place["artifactLocation"] == {"uri": ".", "uriBaseId": "SRCROOT"}
    assert place["region"] == {"startLine": 1}
    (tmp_path / "test_a.py").write_text("")
    given = given._replace(test="test_a.py::test_a")
    (result,) = read_sarif(sarif_log([given], str(tmp_path), successful=False))
    artifact = result["locations"][0]["physicalLocation"]["artifactLocation"]
    assert artifact == {"uri": "test_a.py", "uriBaseId": "SRCROOT"}


def test_a_problem_is_the_same_when_its_line_moves_and_another_one_elsewhere(
    tmp_path: Path,
) -> None:
    others = [
        problem(tmp_path, 3),
        problem(tmp_path, 40),
        problem(tmp_path, rule="poisoned-touch"),
        problem(tmp_path, place=Place(str(tmp_path / "b.py"), 3)),
    ]
    log = sarif_log(others, str(tmp_path), successful=True)
    prints = [each["partialFingerprints"]["cudafork/v1"] for each in read_sarif(log)]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


def test_the_file_says_whether_it_was_a_whole_run(tmp_path: Path) -> None:
    for successful in (True, False):
        write_sarif(str(tmp_path / "r.sarif"), [], str(tmp_path), successful=successful)
        data = json.loads((tmp_path / "r.sarif").read_text())
        assert read_sarif(data) == []
        assert data["runs"][0]["invocations"] == [{"executionSuccessful": successful}]
        assert data["runs"][0]["tool"]["driver"]["semanticVersion"].count(".") == 2


def test_what_checks_it_here_refuses_what_is_none(tmp_path: Path) -> None:
    log = sarif_log([problem(tmp_path, level="bad")], str(tmp_path), successful=True)
    with pytest.raises(ValidationError):
        read_sarif(log)


def test_a_file_whose_name_is_no_text_is_still_named(tmp_path: Path) -> None:
    file = os.fsdecode(os.fsencode(tmp_path) + b"/t\xfe.py")
    given = problem(tmp_path, place=Place(file, 3), test=os.fsdecode(b"t\xfe.py::test_a"))
    write_sarif(str(tmp_path / "r"), [given], str(tmp_path), successful=True)
    (result,) = read_sarif(json.loads((tmp_path / "r").read_text()))
    (location,) = result["locations"]
    assert location["physicalLocation"]["artifactLocation"]["uri"] == "t%FE.py"
    assert result["properties"] == {"test": "t\\udcfe.py::test_a"}
