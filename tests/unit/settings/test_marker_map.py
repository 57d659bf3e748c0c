"""Markers of other suites, read as ours."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cudafork.settings.marker_map import (
    Call,
    MarkerMap,
    iter_marks,
    parse_map,
    shown,
)
from pytest_cudafork.settings.markers import MAPPED

OURS: dict[str, dict[str, str]] = {
    "gpus": {"n": "", "share": "", "memory": ""},
    "cuda_isolated": {"method": "", "scope": ""},
    "spawn_only": {},
}
LINES = """
distributed(num_gpus=n) = gpus(n)
gpu_{n} = gpus(n)
profiled_vram_gib(x) = gpus(1, memory="{x}GiB")
skip_less_device(n) = gpus(n, share=False)
world_size(n) = skip_less_device(n)
forked = cuda_isolated
mode(name="spawn") = spawn_only
mode(name="fork") = cuda_isolated(method='fork')
gpu_{a}_of_{b} = gpus(b)
"""
FULL = parse_map(LINES, OURS)


def mark(source: str) -> pytest.Mark:
    """Return a mark as it is written, without the ``@pytest.mark.``."""
    made: pytest.Mark = eval(f"pytest.mark.{source}", {"pytest": pytest}).mark
    return made


@pytest.fixture(autouse=True)
def any_marker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this session make marks that it does not know."""
    monkeypatch.setattr(pytest.mark, "_config", None)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("distributed(num_gpus=2)", ["gpus(2)"]),
        ("distributed(num_gpus=2, backend='nccl')", ["gpus(2)"]),
        ("gpu_8", ["gpus(8)"]),
        ("gpu_1_of_4", ["gpus(4)"]),
        ("profiled_vram_gib(20)", ["gpus(1, memory='20GiB')"]),
        ("profiled_vram_gib(13.8)", ["gpus(1, memory='13.8GiB')"]),
        ("skip_less_device(2)", ["gpus(2, share=False)"]),
        ("world_size(4)", ["gpus(4, share=False)"]),  # by way of another line
        ("forked", ["cuda_isolated"]),
        ("mode(name='spawn')", ["spawn_only"]),
        ("mode(name='fork')", ["cuda_isolated(method='fork')"]),
        ("gpu_x", []),
        ("gpus(2)", []),
        ("slow", []),
    ],
)
def test_a_mark_is_read_as_the_map_says(theirs: str, ours: list[str]) -> None:
    assert [shown(each) for each in FULL.read(mark(theirs))] == ours


@pytest.mark.parametrize(
    "theirs", ["distributed(2)", "distributed", "skip_less_device", "mode(name=1)", "mode('fork')"]
)
def test_a_mark_whose_arguments_fit_no_line_is_told(theirs: str) -> None:
    with pytest.raises(
        ValueError, match="fits none of what cuda_fork_marker_map says of it"
    ) as told:
        list(FULL.read(mark(theirs)))
    assert f"@pytest.mark.{theirs} " in str(told.value)


def test_a_mark_may_stand_for_several() -> None:
    both = parse_map("big = gpus(2)\nbig = cuda_isolated(scope='module')", OURS)
    assert list(both.read(mark("big"))) == [
        Call("gpus", (2,), {}),
        Call("cuda_isolated", (), {"scope": "module"}),
    ]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("distributed", "is no line of a map: write distributed(num_gpus=n) = gpus(n)"),
        ("distributed(n=x)", "is no line of a map"),
        ("a = gpu(2)", "'a = gpu(2)': there is no marker 'gpu': use cuda_isolated, gpus, spawn_"),
        ("a = graph_capture", "there is no marker 'graph_capture'"),
        ("a = b\nb = c", "'b = c': there is no marker 'c'"),
        ("a = gpus(n)", "'a = gpus(n)': the left side gives no 'n'"),
        ("a(n) = gpus(1, memory='{x}GiB')", "the left side gives no 'x'"),
        ("a = gpus(1, memry=2)", "gpus does not take 'memry': it takes n, share, memory"),
        ("a = spawn_only(method='x')", "spawn_only does not take 'method': it takes no arguments"),
        ("a = a", "the lines make a circle: a = a"),
        ("a = b, b = c, c = a", "the lines make a circle: a = b; b = c; c = a"),
        ("gpu_{n} = gpu_1", "the lines make a circle: gpu_{n} = gpu_1"),
        ("gpus(n) = cuda_isolated", "gpus is this plugin's own, and stays as it is"),
        ("a = gpus(", "'gpus(' is no marker: write a name"),
        ("a.b = gpus(1)", "'a.b' is no marker"),
        ("a(**x) = gpus(1)", "'a(**x)' is no marker"),
        ("a = gpus(open('x'))", "is no marker"),
        ("= gpus(1)", "'' is no marker"),
        ("a = gpus({[]: 1})", "'gpus({[]: 1})' is no marker"),
        ("a_{n}_{n} = gpus(n)", "the left side gives 'n' twice"),
        ("a_{n}(n) = gpus(n)", "the left side gives 'n' twice"),
        ("a(n, gpus=n) = gpus(n)", "the left side gives 'n' twice"),
        ("a(mode='{x}') = gpus(1, memory='{x}GiB')", "the left side gives no 'x'"),
        # Each line leads to two others: all ways through them would be a million.
        ("a = b\na(n) = b\nb = a\nb(n) = a\n" * 3, "the lines make a circle: a = b; b = a"),
    ],
)
def test_a_wrong_map_is_told_with_its_line(lines: str, words: str) -> None:
    with pytest.raises(ValueError) as told:  # noqa: PT011  (the words are compared below)
        parse_map(lines, OURS)
    assert words in str(told.value)


@given(st.text(alphabet="ab(){}=,'\" n1\n[]:", max_size=24))
def test_any_text_is_a_map_or_refused_with_words(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert isinstance(parse_map(text, OURS), MarkerMap)


def test_lines_are_joined_by_commas_or_stand_alone() -> None:
    joined = ",".join(LINES.strip().split("\n"))
    assert parse_map(joined, OURS) == FULL
    assert hash(parse_map(joined, OURS)) == hash(FULL)
    assert parse_map("", OURS) == MarkerMap()
    assert MarkerMap() != FULL


def test_on_one_node_what_is_there_comes_before_what_is_read() -> None:
    marks = [(1, mark("gpu_2")), (1, mark("gpus(1)")), (2, mark("forked"))]
    item: Any = SimpleNamespace(iter_markers_with_node=lambda: iter(marks))
    found = iter_marks(item, FULL)
    assert [(shown(each), origin and shown(origin)) for each, origin in found] == [
        ("gpu_2", None),
        ("gpus(1)", None),
        ("gpus(2)", "gpu_2"),
        ("forked", None),
        ("cuda_isolated", "forked"),
    ]


def test_both_names_of_the_marker_take_the_same() -> None:
    chosen = parse_map("big = isolated(method='spawn', scope='module')", MAPPED)
    assert [shown(each) for each in chosen.read(mark("big"))] == [
        "isolated(method='spawn', scope='module')"
    ]
