"""Two revisions are compared by figures of the same round; what cannot be compared is told."""

from __future__ import annotations

import sys

import pytest

from tests.repo.tools_support import load


def test_two_revisions_are_compared_round_by_round() -> None:
    revisions = load("compare_revisions")
    compared = revisions.compare([10.0, 20.0, 30.0], [11.0, 20.0, 27.0])
    assert compared == {"before": 20.0, "now": 20.0, "ratio": 1.0, "of_least": 1.1}


@pytest.mark.parametrize(
    ("args", "words"),
    [(["HEAD", "--only", "nothing"], "nothing: use some of import,"), (["-x"], "arguments")],
)
def test_a_wrong_comparison_is_a_usage_error(
    args: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    revisions = load("compare_revisions")
    monkeypatch.setattr(sys, "argv", ["compare_revisions.py", *args])
    with pytest.raises(SystemExit) as ended:
        revisions.main()
    assert ended.value.code == 2
    assert words in capsys.readouterr().err.replace(", ", ",")
