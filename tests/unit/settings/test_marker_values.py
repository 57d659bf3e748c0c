"""What the keywords of markers accept, asked by keyword."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_cudafork.settings.marker_values import accepts


@pytest.mark.parametrize(
    ("key", "right", "wrong"),
    [
        ("backends", (["cuda"], ("software", "cuda")), ([], ["cuda", "cuda"], "cuda", ["hip"])),
        ("method", ("auto", "spawn"), ("thread", None, ["fork"])),
        ("scope", ("test", "class"), ("session", 1)),
        ("fixtures", ("own", "inherit"), ("copy",)),
        ("gpus", (1, None), (0, True, "1")),
        ("env", ({"A": "1"}, {}, None), ({"A": 1}, {"": "1"}, {"A=B": "1"}, {"A": "\0"}, ["A"])),
        ("env", ({"A": "\udcff"},), ({"A": "\ud800"}, {"\ud800": "1"}, {1: "1"})),
        ("timeout", (1, 0.5, None), (0, -1, True, "1")),
        ("reason", ("because",), ("", "  ", None, 1)),
    ],
)
def test_each_keyword_has_its_values(key: str, right: Any, wrong: Any) -> None:
    assert [accepts(key, value) for value in right] == [True] * len(right)
    assert [accepts(key, value) for value in wrong] == [False] * len(wrong)
