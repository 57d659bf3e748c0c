"""The record of all benchmarks: what it runs, what it keeps, and when a ratio counts as worse."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.repo.sources import PROJECT
from tests.support.git_repository import GitRepository

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
    said, wrong = benchmark("record_guard").judge("record_cpu_x.md", THEN, now, 0.15)
    assert wrong == words
    assert f"Against record_cpu_x.md: {len(words)} of 1 figures are worse or missing." in said


def test_a_figure_of_counts_may_not_get_worse_at_all(benchmark: Callable[[str], Any]) -> None:
    then, now = {"a": figure(1.0, 1.0)}, {"a": figure(1.02, 1.02)}
    judge = benchmark("record_guard").judge
    assert judge("x", then, now, 0.15, {"one"})[1] == ["a: 1.000 before, 1.020 now"]
    assert judge("x", then, then, 0.15, {"one"})[1] == []


def keep(folder: Path, name: str, **data: Any) -> None:
    """Write a record with a line of JSON."""
    (folder / f"{name}.md").write_text(f"# Title\n\n```json\n{json.dumps(data)}\n```\n")


def test_of_each_part_the_newest_record_counts_that_has_it(
    benchmark: Callable[[str], Any], tmp_path: Path
) -> None:
    guard, parts = benchmark("record_guard"), benchmark("record_parts")
    for name, of in {
        "record_cpu_2026-01-01": {"a": figure(1.0, 1.0), "b": figure(1.0, 1.0, "two")},
        "record_cpu_2026-01-02": {"a": figure(2.0, 2.0)},
        "record_cpu_2026-01-02_2": {"a": figure(3.0, 3.0)},
        "record_gpu_2026-02-02": {"a": figure(4.0, 4.0)},
    }.items():
        keep(tmp_path, name, figures=of)
    listed = {name: parts.Part("x.py", [], dict) for name in ("one", "two", "never")}
    files, found = guard.last("cpu", listed, tmp_path)
    assert files == ["record_cpu_2026-01-02_2.md", "record_cpu_2026-01-01.md"]
    assert {name: each["median"] for name, each in found.items()} == {"a": 3.0, "b": 1.0}
    assert guard.last("tpu", listed, tmp_path) == ([], {})


def test_a_long_part_is_compared_with_its_own_newest_record(
    benchmark: Callable[[str], Any], tmp_path: Path
) -> None:
    guard, parts = benchmark("record_guard"), benchmark("record_parts")
    keep(tmp_path, "faults_cpu_2026-01-01", kept=4)
    (tmp_path / "faults_cpu_2026-01-02.md").write_text("written by hand")
    part = parts.Part("x.py", [], lambda data: {"kept": float(data["kept"])}, topic="faults")
    files, found = guard.last("cpu", {"faults": part}, tmp_path)
    assert files == ["faults_cpu_2026-01-01.md"]
    assert found["kept"]["median"] == 4.0


def test_without_a_record_there_is_nothing_green(benchmark: Callable[[str], Any]) -> None:
    compare = benchmark("record_guard").compare
    none: tuple[list[str], dict[str, Any]] = ([], {})
    words = "There is no record to compare with."
    assert compare(none, {"a": figure(1.0, 1.0)}, 0.1, {}) == (words, [words])
    assert compare(none, {}, 0.1, {})[1] == []  # parts that are judged by their status


def test_a_record_without_a_line_of_json_is_an_error(
    benchmark: Callable[[str], Any], tmp_path: Path
) -> None:
    (tmp_path / "record.md").write_text("# Title\n")
    with pytest.raises(ValueError, match=r"record\.md: no line of JSON"):
        benchmark("results_file").document(tmp_path / "record.md")


def test_a_record_is_never_written_over_and_says_what_made_it(
    benchmark: Callable[[str], Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    results = benchmark("results_file")
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", [str(PROJECT / "benchmarks" / "x.py"), "--only", "a b"])
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    names = []
    for number in range(2):
        results.publish("topic", "Title", "text", {"n": number}, save=True)
        names.append(json.loads(capsys.readouterr().out.splitlines()[-1])["record"])
    assert names[1] == names[0].replace(".md", "_2.md")
    first = (tmp_path / names[0]).read_text()
    assert "python benchmarks/x.py --only 'a b'\n" in first
    told = results.document(tmp_path / names[0])
    assert (told["n"], told["machine"]["cores"]) == (0, len(os.sched_getaffinity(0)))
    assert f"revision {told['machine']['revision']}.\n" in first
    assert [file.name for file in results.kept("topic", told["device"], tmp_path)] == names[::-1]


def test_the_revision_says_whether_files_were_changed_and_why_it_is_not_known(
    benchmark: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = benchmark("results_file")
    monkeypatch.setattr(results, "PROJECT", tmp_path)
    assert results.revision() == "not known: no git repository"
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    repository = GitRepository(tmp_path)
    assert results.revision() == "not known: git rev-parse ended with 128"
    repository.commit("first", {"a.py": "1"})
    commit = repository.git("rev-parse", "HEAD").strip()
    assert results.revision() == commit[:7]
    (tmp_path / "new.py").write_text("")
    assert results.revision() == commit[:7]
    (tmp_path / "a.py").write_text("2")
    assert results.revision() == f"{commit[:7]}, changed"


def test_a_record_of_another_processor_is_told(
    benchmark: Callable[[str], Any], tmp_path: Path
) -> None:
    keep(tmp_path, "here", machine={"processor": "A"})
    keep(tmp_path, "there", machine={"processor": "B"})
    keep(tmp_path, "old")
    told = benchmark("record_guard").of_other_processors
    assert told(["here.md", "there.md", "old.md"], "A", tmp_path) == [
        "there.md is of B, and this is A: ratios differ by that, too.",
        "old.md is of a processor not told, and this is A: ratios differ by that, too.",
    ]


@pytest.fixture
def every(benchmark: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script with runs that end with what ``ends`` says, in the order of ``order``."""
    made = benchmark("bench_all")
    made.order, made.ends = [], {}

    def last_line(
        python: str, command: list[str], *rest: Any, **more: Any
    ) -> tuple[int, dict[str, Any]]:
        made.order.append(" ".join(command))
        end = made.ends.get(command[0], 0)
        if isinstance(end, BaseException):
            raise end
        return end, {"value": float(len(made.order)), "record": f"{command[0]}.md"}

    monkeypatch.setattr(made, "last_line", last_line)
    return made


def listed(benchmark: Callable[[str], Any], **changes: dict[str, Any]) -> dict[str, Any]:
    """Return parts of these names, each with what is said of it."""
    part = benchmark("record_parts").Part
    return {
        name: part(
            **{
                "script": f"{name}.py",
                "options": [],
                "figures": lambda data, name=name: {f"figure of {name}": data["value"]},
                **change,
            }
        )
        for name, change in changes.items()
    }


def test_parts_take_turns_and_what_fails_is_told_once(
    benchmark: Callable[[str], Any], every: Any
) -> None:
    every.ends["bad.py"] = RuntimeError("no\n way")
    parts = listed(benchmark, good={}, bad={})
    found = every.take_turns(parts, 2, "", save=True)
    assert every.order == ["good.py", "bad.py", "good.py"]
    text, data = every.report(found, 1.0)
    assert data["figures"]["figure of good"] == {
        "part": "good",
        "median": 2.0,
        "least": 1.0,
        "most": 3.0,
        "runs": 2,
    }
    assert "- failed: bad: no way" in text
    assert data["parts"]["bad"]["failed"] == "bad: no\n way"
    assert data["parts"]["good"]["record"] == ""


def test_a_long_part_runs_once_at_the_end_and_its_record_and_status_are_told(
    benchmark: Callable[[str], Any], every: Any
) -> None:
    every.ends["wrong.py"] = 1
    parts = listed(benchmark, wrong={"topic": "w"}, right={"topic": "r"}, short={})
    found = every.take_turns(parts, 2, "", save=True)
    assert every.order == ["short.py", "short.py", "wrong.py --save", "right.py --save"]
    assert found.records == {"wrong": "wrong.py.md", "right": "right.py.md"}
    assert found.failed == {"wrong": "wrong: wrong.py --save ended with 1"}
    assert set(every.report(found, 1.0)[1]["figures"]) == {f"figure of {name}" for name in parts}


def test_what_was_measured_before_an_interrupt_is_kept(
    benchmark: Callable[[str], Any], every: Any
) -> None:
    every.ends["second.py"] = KeyboardInterrupt()
    found = every.take_turns(listed(benchmark, first={}, second={}, third={}), 1, "")
    assert every.order == ["first.py", "second.py"]
    assert found.values["first"] == {"figure of first": [1.0]}
    assert set(found.failed) == {"second", "third"}


def test_long_parts_of_one_gpu_run_side_by_side_each_on_its_own(
    benchmark: Callable[[str], Any], every: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, 5")
    both = threading.Barrier(2, timeout=60)
    ran: list[tuple[str, str]] = []

    def last_line(python: str, command: list[str], *_: Any, **rest: Any) -> tuple[int, Any]:
        card = rest["more"].get("CUDA_VISIBLE_DEVICES", "all")
        if card != "all":
            both.wait()  # the other one runs now
        ran.append((command[0], card))
        if command[0] == "b.py":
            raise RuntimeError("no way")
        return 0, {"value": 1.0, "record": f"{command[0]}.md"}

    monkeypatch.setattr(every, "last_line", last_line)
    one = {"topic": "t", "gpus": 1}
    alone = {"two": {"topic": "t", "gpus": 2}, "busy": {**one, "alone": "all cores"}}
    parts = listed(benchmark, **alone, a=one, b=one, short={"gpus": 1})
    found = every.take_turns(parts, 1, "")
    assert ran[0] == ("short.py", "all")
    assert {name for name, _ in ran[1:3]} == {"a.py", "b.py"}
    assert {card for _, card in ran[1:3]} == {"3", "5"}
    assert ran[3:] == [("two.py", "all"), ("busy.py", "all")]
    assert found.failed == {"b": "b: no way"}
    assert set(found.records) == {"a", "two", "busy"}


def test_what_keeps_the_processor_busy_or_is_slowed_down_by_that_runs_alone(
    benchmark: Callable[[str], Any],
) -> None:
    parts = benchmark("long_parts").LONG_GPU
    assert [name for name, part in parts.items() if part.alone] == ["catch", "drafts"]
    for part in parts.values():
        assert not part.counts or part.alone
        assert not part.alone or f"nothing beside it ({part.alone})" in part.wanted


def test_without_a_gpu_to_be_seen_parts_that_need_one_are_absent(
    benchmark: Callable[[str], Any], every: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    one = {"topic": "t", "gpus": 1}
    found = every.take_turns(listed(benchmark, a=one, b=one), 1, "")
    assert found.absent["a"] == "a: not measured: it needs 1 GPU, there are 0"
    assert every.report(found, 0.0)[0].startswith("Nothing was measured.\n")
    assert set(found.absent) == {"a", "b"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"needs": ("no_such_module",)}, "it needs no_such_module"),
        ({"needs": ("no_such",), "setup": "make it"}, "it needs no_such (make it)"),
        ({"peers": True}, "it needs an interpreter with pytest-forked"),
        ({"gpus": 1000}, "it needs 1000 GPUs, there are"),
    ],
)
def test_a_part_that_cannot_run_says_why_and_fails_the_run_only_if_it_was_named(
    benchmark: Callable[[str], Any],
    every: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    change: dict[str, Any],
    words: str,
) -> None:
    monkeypatch.setattr(every, "CPU", listed(benchmark, here={}, absent=change))
    monkeypatch.setattr(every, "LONG_CPU", {})
    assert every.main([]) == 0
    assert f"- not in it: absent: not measured: {words}" in capsys.readouterr().out
    assert every.main(["--only", "absent"]) == 1
    assert words in capsys.readouterr().err
    assert every.order == ["here.py"] * 3


def test_long_parts_run_only_with_all_or_by_name_and_the_list_runs_nothing(
    benchmark: Callable[[str], Any],
    every: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(every, "CPU", listed(benchmark, short={"minutes": 0.5}))
    monkeypatch.setattr(every, "LONG_CPU", listed(benchmark, hours={"topic": "t", "minutes": 90.0}))
    assert every.main(["--list"]) == 0
    told = capsys.readouterr()
    assert every.order == []
    assert "About 92 minutes" in told.out  # three times half a minute, and the long one
    for options, ran in (
        ([], ["short.py"] * 3),
        (["--all", "--rounds", "1"], ["short.py", "hours.py"]),
        (["--only", "hours"], ["hours.py"]),
    ):
        every.order.clear()
        assert every.main(options) == 0
        assert every.order == ran
        assert "minutes on two cores" in capsys.readouterr().err  # before it starts


@pytest.mark.parametrize("aloud", [True, False])
def test_what_a_command_says_while_it_runs_is_shown_if_it_is_to_be(
    benchmark: Callable[[str], Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    aloud: bool,
) -> None:
    code = "import sys; print('begun', file=sys.stderr); print('a table'); print('[1, 2]'); exit(3)"
    run = benchmark("last_line").last_line
    assert run(sys.executable, ["-c", code], tmp_path, 60.0, aloud=aloud) == (3, [1, 2])
    assert ("begun" in capsys.readouterr().err) is aloud


def test_a_command_gets_the_variables_that_are_named_beside_those_of_the_caller(
    benchmark: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_CALLER", "a")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    code = "import json, os; print(json.dumps([os.environ[x] for x in sys.argv[1:]]))"
    command = ["-c", f"import sys; {code}", "OF_THE_CALLER", "CUDA_VISIBLE_DEVICES"]
    run = benchmark("last_line").last_line
    more = {"CUDA_VISIBLE_DEVICES": "1"}
    assert run(sys.executable, command, tmp_path, 60.0, more=more) == (0, ["a", "1"])


def test_what_a_command_leaves_behind_does_not_keep_it_from_being_read(
    benchmark: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = benchmark("last_line")
    monkeypatch.setattr(module, "_LATE_SECONDS", 0.0)
    left = "subprocess.Popen(['sleep', '600'], stdout=subprocess.DEVNULL)"
    code = f"import subprocess; print({left}.pid)"
    _, pid = module.last_line(sys.executable, ["-c", code], tmp_path, 60.0)
    os.kill(pid, signal.SIGKILL)


def test_a_command_that_takes_too_long_is_ended(
    benchmark: Callable[[str], Any], tmp_path: Path
) -> None:
    run = benchmark("last_line").last_line
    with pytest.raises(RuntimeError, match=r"was ended after 0 s"):
        run(sys.executable, ["-c", "import time; time.sleep(600)"], tmp_path, 0.0)


def test_what_looks_worse_is_measured_as_often_again_before_it_counts(
    benchmark: Callable[[str], Any],
    every: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = {"slow.py": iter([9.0, 9.0, 1.0, 1.0]), "same.py": iter([1.0, 1.0])}
    monkeypatch.setattr(every, "CPU", listed(benchmark, slow={}, same={}))
    monkeypatch.setattr(every, "LONG_CPU", {})
    monkeypatch.setattr(
        every, "last_line", lambda python, command, *_, **__: (0, {"value": next(told[command[0]])})
    )
    then = {f"figure of {name}": figure(1.0, 1.0, name) for name in ("slow", "same")}
    guard = benchmark("record_guard")
    monkeypatch.setattr(guard, "last", lambda *_: (["x.md"], then))
    monkeypatch.setattr(guard, "of_other_processors", lambda *_: ["x.md is of another one."])
    assert every.main(["--rounds", "2", "--against-last"]) == 0
    out, err = capsys.readouterr()
    assert "worse than before, so once more: slow\n" in err
    assert "\nx.md is of another one.\n" in out
    figures = json.loads(out.splitlines()[-1])["figures"]
    assert figures["figure of slow"] == {
        **figure(5.0, 1.0, "slow"), "most": 9.0, "runs": 4
    }  # fmt: skip
    assert figures["figure of same"]["runs"] == 2


def test_a_long_part_is_not_compared_with_the_record_that_it_has_just_kept(
    benchmark: Callable[[str], Any],
    every: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(every, "CPU", {})
    counting = {"topic": "t", "counts": True, "figures": lambda data: {"a": data["value"]}}
    monkeypatch.setattr(every, "LONG_CPU", listed(benchmark, counted=counting))
    kept = benchmark("results_file").kept
    guard, document = benchmark("record_guard"), benchmark("results_file").document
    monkeypatch.setattr(guard, "kept", lambda topic, device, _: kept(topic, device, tmp_path))
    monkeypatch.setattr(guard, "document", lambda file: document(tmp_path / file.name))
    keep(tmp_path, "t_cpu_2026-01-01", value=1.0)

    def last_line(*_: Any, **__: Any) -> tuple[int, dict[str, Any]]:
        keep(tmp_path, "t_cpu_2026-01-02", value=2.0)
        return 0, {"value": 2.0, "record": "t_cpu_2026-01-02.md"}

    monkeypatch.setattr(every, "last_line", last_line)
    assert every.main(["--only", "counted", "--against-last"]) == 1
    assert "Against t_cpu_2026-01-01.md: 1 of 1" in capsys.readouterr().out


def test_a_command_whose_last_line_is_no_json_says_how_it_ended(
    benchmark: Callable[[str], Any], tmp_path: Path
) -> None:
    run = benchmark("last_line").last_line
    with pytest.raises(RuntimeError, match=r"no_such\.py ended with 2: .*No such file"):
        run(sys.executable, ["no_such.py"], tmp_path, 60.0)


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


# A record of each part that has figures, by the script and sizes of any day.
KEPT = {
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
    "catch": "catch_rate_cpu_2026-11-28",
    "faults": "faults_whole_cpu_2026-11-28",
    "releases": "release_pairs_cpu_2026-11-24",
}


def test_a_part_reads_a_committed_record(benchmark: Callable[[str], Any]) -> None:
    short, long, results = map(benchmark, ("record_parts", "long_parts", "results_file"))
    parts = {**short.GPU, **short.CPU, **long.LONG_CPU}
    for name, record in KEPT.items():
        figures = parts[name].figures(results.document(results.RESULTS / f"{record}.md"))
        assert figures, name
        assert all(value > 0 for value in figures.values())


def test_counts_are_all_that_was_tried_to_what_came_out_right(
    benchmark: Callable[[str], Any],
) -> None:
    long, results = benchmark("long_parts"), benchmark("results_file")
    found = {
        name: long.LONG_CPU[name].figures(results.document(results.RESULTS / f"{KEPT[name]}.md"))
        for name in ("catch", "faults")
    }
    assert set(found["faults"].values()) == {1.0}
    assert found["catch"]["specimens of forks, to those told by their line: present"] == 1.0
    assert found["catch"]["specimens of forks, to those told by their line: absent"] == 42 / 35
    assert found["catch"]["specimens of forks, 1 and the false alarms: absent"] == 3.0


def test_a_column_that_is_empty_has_a_rule_that_markdown_knows(
    benchmark: Callable[[str], Any],
) -> None:
    lines = benchmark("results_file").table(("a", "s", ""), [["x", "1", ""]]).splitlines()
    assert lines == ["| a  |  s |    |", "| -- | -: | -: |", "| x  |  1 |    |"]


def test_the_processor_is_named(benchmark: Callable[[str], Any]) -> None:
    results = benchmark("results_file")
    assert results.processor("a\t: b\nmodel name\t: Some CPU\n") == "Some CPU"
    assert results.processor("")
