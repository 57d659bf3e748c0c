"""Pictures and the tables of docs/explanation/measured.md say what the newest records say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.repo.test_figures import has
from tests.specimens.catalog import CATALOG
from tools import draw_records
from tools.draw_records import PAGE, Record

FIGURES = {
    "fast & small": {"part": "a", "median": 0.5, "least": 0.25, "most": 1.0, "runs": 3},
    "slow": {"part": "a", "median": 2.0, "least": 2.0, "most": 4.0, "runs": 1},
}


def test_each_picture_is_the_one_of_the_newest_record() -> None:
    drawn = draw_records.pictures()
    assert drawn
    for file, picture in drawn.items():
        assert file.read_text(encoding="utf-8") == picture, "run `python tools/draw_records.py`"


def test_the_tables_of_the_page_are_those_of_the_newest_records_and_of_the_parts() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert draw_records.page(text) == text, "run `python tools/draw_records.py`"


def test_a_bar_goes_from_least_to_most_on_a_logarithmic_scale() -> None:
    picture = draw_records.of_costs(Record("record_cpu_x.md", {"figures": FIGURES}))
    root = ElementTree.fromstring(picture)
    svg = "{http://www.w3.org/2000/svg}"
    bars = [(float(r.get("x", "0")), float(r.get("width", "0"))) for r in root.iter(f"{svg}rect")]
    (_, first), _, (_, second), _ = bars[1:]  # the first is the background
    assert first == pytest.approx(2 * second)  # from 0.25 to 1, and from 2 to 4
    texts = [text.text for text in root.iter(f"{svg}text")]
    assert "fast & small" in texts
    assert "benchmarks/results/record_cpu_x.md" in texts


@pytest.mark.parametrize(
    ("median", "least", "most", "written"),
    [
        (0.0192, 0.018, 0.0216, ["0.0192", "0.0180", "0.0216"]),
        (12.6956, 12.6819, 14.3277, ["12.7", "12.7", "14.3"]),
        (12.6956, 12.6819, 12.7277, ["12.70", "12.68", "12.73"]),
        (1.0014, 1.0008, 1.0009, ["1.0014", "1.0008", "1.0009"]),
        (0.9478, 0.9259, 1.0629, ["0.948", "0.926", "1.063"]),
        (2.0, 2.0, 2.0, ["2.00", "2.00", "2.00"]),
        (234.56, 123.4, 345.6, ["235", "123", "346"]),
        (0.0, 0.0, 0.0001, ["0.0000", "0.0000", "0.0001"]),
    ],
)
def test_a_figure_has_three_digits_or_as_many_as_show_its_spread(
    median: float, least: float, most: float, written: list[str]
) -> None:
    figure = {"median": median, "least": least, "most": most}
    assert draw_records.numbers(figure) == written


@pytest.mark.parametrize("device", draw_records.IN_TURNS)
def test_each_number_of_a_table_is_in_a_record_and_shows_the_spread(
    benchmark: Callable[[str], Any], device: str
) -> None:
    names, figures = benchmark("record_guard").last(device, draw_records.IN_TURNS[device])
    results = benchmark("results_file").RESULTS
    said = "\n".join((results / name).read_text(encoding="utf-8") for name in names)
    lines = draw_records.costs(device).splitlines()[2:]
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("|")]
    assert len(rows) == len(figures)
    picture = (draw_records.IMAGES / f"costs_{device}.svg").read_text(encoding="utf-8")
    for (name, *numbers, _), figure in zip(rows, figures.values(), strict=True):
        assert all(has(said, number) for number in numbers), name
        assert (numbers[1] == numbers[2]) == (figure["least"] == figure["most"]), name
        assert f">{numbers[0]}</text>" in picture, name


def test_a_name_of_a_record_that_says_too_little_is_told_in_other_words(
    benchmark: Callable[[str], Any],
) -> None:
    last = benchmark("record_guard").last
    known = {name for each in draw_records.IN_TURNS.items() for name in last(*each)[1]}
    assert set(draw_records.WORDS) <= known
    for text in (
        draw_records.costs("cpu"),
        (draw_records.IMAGES / "costs_cpu.svg").read_text(encoding="utf-8"),
    ):
        for name, words in draw_records.WORDS.items():
            assert words in text
            assert name not in text


def test_what_each_method_tells_is_in_the_picture_and_of_what_torch_can_see(
    benchmark: Callable[[str], Any],
) -> None:
    each = {"specimens": 4, "caught": 2, "right_line": 1, "false_alarms": 0}
    data = {"forks": {"totals": dict.fromkeys(draw_records.METHODS, each)}}
    verdict = benchmark("catch_words").Verdict(True, False, False)
    importing = [one.name for one in CATALOG if one.needs][:2]
    specimens = [*importing, *[one.name for one in CATALOG if not one.needs][:2]]
    said = benchmark("catch_rate").hint({name: {"torch": verdict} for name in specimens})
    picture = draw_records.of_catches(Record("x.md", data, said))
    assert picture.count("2 of the 2 that import torch, line 1, false 0") == 2
    assert picture.count("2 of 4, line 1, false 0") == len(draw_records.METHODS) - 2
    assert "2 of the 4 run without torch" in picture
    with pytest.raises(ValueError, match=r"x\.md does not say how many specimens import torch"):
        draw_records.of_catches(Record("x.md", data))


def test_each_loop_has_a_line_from_its_first_look_to_its_last() -> None:
    loops = {
        "long": {"samples": [[10, 2**21, 5, 1, 0], [20, 2**22, 5, 1, 0]]},
        "short": {"samples": [[1, 2**21, 5, 1, 0], [2, 2**21, 5, 1, 0], [4, 2**21, 5, 1, 0]]},
    }
    picture = draw_records.of_soak(Record("soak_cpu_x.md", {"loops": loops}))
    root = ElementTree.fromstring(picture)
    svg = "{http://www.w3.org/2000/svg}"
    paths = [path.get("d", "")[1:].split("L") for path in root.iter(f"{svg}path")]
    _, long, short = [[tuple(map(float, each.split())) for each in path] for path in paths]
    assert [len(long), len(short)] == [2, 3]
    assert long[-1][0] == short[-1][0]  # each ends at the right
    assert {y for _, y in short} == {long[0][1]}  # as much memory
    texts = [text.text for text in root.iter(f"{svg}text")]
    assert "long: 20 turns, 4 MiB" in texts


def test_the_newest_record_is_the_one_with_the_latest_date(tmp_path: Path) -> None:
    days = ("2026-01-02", "2026-01-10", "2026-01-10_2", "2026-01-10_10", "2025-12-31")
    for name in (*(f"record_cpu_{day}" for day in days), "record_of_more_cpu_2026-02-01"):
        text = f"# Title\n\n```json\n{json.dumps({'name': name})}\n```\n"
        (tmp_path / f"{name}.md").write_text(text, encoding="utf-8")
    (tmp_path / "record_cpu_2026-03-01.md").write_text("written by hand", encoding="utf-8")
    found = draw_records.newest("record", "cpu", tmp_path)
    assert found is not None
    assert found[:2] == ("record_cpu_2026-01-10_10.md", {"name": "record_cpu_2026-01-10_10"})
    assert draw_records.newest("other", "cpu", tmp_path) is None


def test_a_page_without_a_place_for_a_table_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"measured\.md: no <!-- written"):
        draw_records.page("# Title\n")
