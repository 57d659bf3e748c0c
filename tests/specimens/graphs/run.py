"""Tries a form of a graph specimen, and checks the outcome."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_cudafork.errors import GraphCaptureError
from tests.specimens.graphs.bench import Bench
from tests.specimens.graphs.specimen import GraphSpecimen

SEEDS = (0, 1, 2)


def assert_caught(specimen: GraphSpecimen, bench: Bench) -> list[str]:
    """Check that the buggy form fails with the words and the place that the catalog states.

    Returns:
        The names of all checks that spoke.

    """
    with pytest.raises(GraphCaptureError) as caught:
        specimen.check(specimen.form("buggy"), bench)
    findings = list(caught.value.findings)
    text = str(caught.value)
    spoke = sorted({finding.check for finding in findings})
    expected = specimen.words(bench.backend)
    missing = sorted(set(expected) - set(spoke))
    assert not missing, f"{missing} did not speak, only {spoke}:\n{text}"
    own = [finding for finding in findings if finding.check in expected]
    assert any(specimen.path in finding.path for finding in own), f"no {specimen.path} in:\n{text}"
    named = specimen.named_lines
    assert not named or any(_names(finding, named) for finding in own), f"no {named} in:\n{text}"
    for word in spoke:
        assert word in text, f"the failure does not say {word}:\n{text}"
    return spoke


def _names(finding: Any, lines: tuple[str, ...]) -> bool:
    """Whether a finding names one of the lines, by the file's name or its whole path."""
    said = (finding.where, finding.what)
    short = tuple(line.rpartition("/")[2] for line in lines)
    return any(f"{line}" in text.replace(f"{line}0", "") for text in said for line in short)


def assert_passes(specimen: GraphSpecimen, bench: Bench) -> None:
    """Check that the fixed form raises nothing."""
    specimen.check(specimen.form("fixed"), bench)
