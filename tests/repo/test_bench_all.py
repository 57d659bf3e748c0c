"""The record of all benchmarks: what it runs, what it keeps, and when a ratio counts as worse."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.repo.sources import PROJECT

THEN = {"a": {"part": "one", "median": 1.0, "least": 0.9, "most": 1.1}}


def figure(median: float, least: float, part: str = "one") -> dict[str, Any]:
    """Return a figure as a record has it."""
    return {"part": part, "median": median, "least": least, "most": median}


@pytest.mark.parametrize(
    ("now", "words"),
    [
        ({"a": figure(1.14, 1.12)}, []),  # within what is allowed
        ({"a": figure(1.3, 1.05)}, []),  # its least is what the record had
        ({"a": figure(1.3, 1.2)}, ["a: 1.000 before, 1.300 now"]),
        ({"b": figure(9.0, 9.0)}, ["a: not measured"]),
        ({"a": figure(0.5, 0.5), "b": figure(9.0, 9.0)}, []),
    ],
)
def test_a_ratio_is_worse_beyond_what_is_allowed_and_beyond_the_spread(
    benchmark: Callable[[str], Any], now: dict[str, Any], words: list[str]
) -> None:
    said, wrong = benchmark("record_guard").judge("record_cpu_x.md", THEN, now, 0.15, ["one"])
    assert wrong == words
    assert f"Against record_cpu_x.md: {len(words)} of 1 figures are worse or missing." in said


def test_figures_of_parts_that_were_not_chosen_are_not_missed(
    benchmark: Callable[[str], Any],
) -> None:
    assert benchmark("record_guard").judge("x", THEN, {}, 0.15, ["two"])[1] == []


def test_the_newest_record_of_the_device_is_the_last_one(
    benchmark: Callable[[str], Any], tmp_path: Path
) -> None:
    guard = benchmark("record_guard")
    for name in ("record_cpu_2026-01-02", "record_cpu_2026-01-01", "record_gpu_2026-02-02"):
        line = json.dumps({"topic": "record", "figures": {name: figure(1.0, 1.0)}})
        (tmp_path / f"{name}.md").write_text(f"# Title\n\n```json\n{line}\n```\n")
    assert guard.last("cpu", tmp_path)[0] == "record_cpu_2026-01-02.md"
    assert list(guard.last("cpu", tmp_path)[1]) == ["record_cpu_2026-01-02"]
    assert guard.last("tpu", tmp_path) == ("", {})


def test_without_a_record_there_is_nothing_green(
    benchmark: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = benchmark("record_guard")
    monkeypatch.setattr(guard, "last", lambda device: ("", {}))
    words = "There is no record of a gpu to compare with."
    assert guard.compare("gpu", {}, 0.1, []) == (words, [words])


def test_a_record_without_a_line_of_json_is_an_error(
    benchmark: Callable[[str], Any], tmp_path: Path
) -> None:
    (tmp_path / "record.md").write_text("# Title\n")
    with pytest.raises(ValueError, match=r"record\.md: no line of JSON"):
        benchmark("record_guard").document(tmp_path / "record.md")


def test_parts_take_turns_and_what_fails_is_told_once(
    benchmark: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    every, parts = benchmark("bench_all"), benchmark("record_parts")
    order: list[str] = []

    def measured(part: Any, peers: str) -> dict[str, float]:
        order.append(part.script)
        if part.script == "bad":
            raise RuntimeError("no\n way")
        return {f"figure of {part.script}": float(len(order))}

    monkeypatch.setattr(every, "measured", measured)
    listed = {
        "good": parts.Part("good", [], dict),
        "bad": parts.Part("bad", [], dict),
        "long": parts.Part("long", [], dict, once=True),
    }
    values, failed = every.take_turns(listed, 2, "")
    assert order == ["good", "bad", "long", "good"]
    text, data = every.report(values, failed, 1.0)
    assert data["figures"]["figure of good"] == {
        "part": "good",
        "median": 2.5,
        "least": 1.0,
        "most": 4.0,
        "runs": 2,
    }
    assert "- not in it: bad: no way" in text
    assert data["failed"] == failed


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"needs": ("no_such_module",)}, "it needs no_such_module"),
        ({"peers": True}, "--peers names no interpreter"),
        ({"script": "no_such_script"}, "no_such_script ended with 2"),
    ],
)
def test_a_part_that_cannot_run_says_why(
    benchmark: Callable[[str], Any], change: dict[str, Any], words: str
) -> None:
    part = benchmark("record_parts").Part(
        **{"script": "x", "options": [], "figures": dict, **change}
    )
    with pytest.raises(RuntimeError, match=words):
        benchmark("bench_all").measured(part, "")


@pytest.mark.parametrize(
    ("args", "words"),
    [(["--only", "nothing"], "nothing: use some of import"), (["--rounds", "0"], "at least 1")],
)
def test_a_wrong_argument_is_a_usage_error(
    benchmark: Callable[[str], Any],
    capsys: pytest.CaptureFixture[str],
    args: list[str],
    words: str,
) -> None:
    with pytest.raises(SystemExit) as ended:
        benchmark("bench_all").main(args)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_every_part_is_a_script_and_reads_its_last_committed_record(
    benchmark: Callable[[str], Any],
) -> None:
    parts, guard = benchmark("record_parts"), benchmark("record_guard")
    for part in [*parts.CPU.values(), *parts.GPU.values()]:
        assert (PROJECT / part.command[0]).is_file()
    results = PROJECT / "benchmarks" / "results"
    kept = {
        "watched": "watched_calls_cpu_2026-11-22",
        "run": "run_cpu_2026-11-23",
        "audit": "imports_torch_cpu_2026-11-21",
        "graph": "software_graph_cpu_2026-11-21",
        "captures": "captures_cpu_2026-11-23",
        "isolation": "isolation_sessions_cpu_2026-11-24",
        "engine": "engine_cpu_cpu_2026-11-23",
        "packing": "packing_cpu_2026-11-23",
        "overhead": "overhead_cpu_2026-11-21",
        "pair": "capture_pair_gpu_2026-11-21",
        "decode": "engine_decode_graphs_gpu_2026-11-21",
        "blocks": "kv_blocks_gpu_2026-11-23",
        "speculation": "speculation_gpu_2026-11-23",
    }
    for name, record in kept.items():
        part = {**parts.CPU, **parts.GPU}[name]
        figures = part.figures(guard.document(results / f"{record}.md"))
        assert figures, name
        assert all(value > 0 for value in figures.values())


def test_the_processor_is_named(benchmark: Callable[[str], Any]) -> None:
    every = benchmark("bench_all")
    assert every.processor("a\t: b\nmodel name\t: Some CPU\n") == "Some CPU"
    assert every.processor("")
