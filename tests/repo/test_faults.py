"""The campaign of faults: what counts as a promise kept, and what it writes."""

from __future__ import annotations

import importlib
import json
import os
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("benchmark")


def module(name: str) -> Any:
    """Import a module of the benchmarks."""
    return importlib.import_module(name)


def fault(**fields: str) -> Any:
    """Return a fault that kills its process."""
    return module("fault_cases").Fault(**{"name": "dies", "body": "x", "word": "SIGX", **fields})


def cases(**fields: Any) -> list[Any]:
    """Return the three tests of the fault's file, the second of them as said."""
    make = module("fault_sessions").Case
    own = {"said": frozenset({"failed"}), "words": "SIGX", "output": "said-dies.\n", **fields}
    names = ("test_before", "test_fault", "test_after")
    return [
        make("test_dies", each, **(own if each == "test_fault" else {"said": frozenset()}))
        for each in names
    ]


def kept(*, method: str = "fork", given: Any = None, **seen: Any) -> str:
    """Return which promises a session did not keep."""
    sessions = module("fault_sessions")
    session = sessions.Seen(**{"cases": cases(), "ended": True, **seen})
    told: str = module("faults").broken(sessions.judge(given or fault(), method, session))
    return told


def test_each_promise_is_broken_by_itself() -> None:
    left = module("fault_sessions").Left
    assert kept() == ""
    assert kept(cases=cases(said=frozenset())) == "outcome"
    assert kept(cases=cases(said=frozenset({"failed", "error"}))) == "outcome"
    assert kept(cases=cases(output="")) == "output"
    assert kept(cases=cases(seconds=60.0)) == "time"
    assert kept(ended=False) == "time"
    assert kept(left=[left("process 7", "dies")]) == "nothing left"
    assert kept(left=[left("a file")]) == "nothing left"
    assert kept(left=[left("process 7", "another")]) == ""
    before, own, after = cases()
    assert kept(cases=[before, own]) == "others"
    assert kept(cases=[before, own, after, after]) == "others"
    assert kept(cases=[replace(before, said=frozenset({"error"})), own, after]) == "others"
    assert kept(cases=[before, after]) == "outcome, output, time"
    assert kept(cases=[]) == "outcome, others, output, time"


def test_the_words_of_a_report_are_asked_of_ours_only() -> None:
    silent = cases(words="it went wrong")
    assert kept(cases=silent) == "outcome"
    assert kept(cases=silent, method="pytest-forked") == ""


def test_a_report_is_read_without_the_source_that_it_shows(tmp_path: Path) -> None:
    sessions = module("fault_sessions")
    known = fault(body='os.kill(os.getpid(), signal.SIGX)\nprint("said-dies.")')
    sessions.write(known, "", tmp_path, "a session")
    report = tmp_path / "report.xml"
    report.write_text(
        """<testsuites><testsuite>
        <testcase classname="tests.test_dies" name="test_fault" time="1.5">
        <failure message="it failed">&gt;   os.kill(os.getpid(), signal.SIGX)
            print("said-dies.")
        E   of another kind</failure><system-out>words of the test</system-out></testcase>
        <testcase classname="" name="internal"><error/></testcase>
        </testsuite></testsuites>""",
        encoding="utf-8",
    )
    one, other = sessions.cases(report, tmp_path)
    assert (one.file, one.name, one.said, one.seconds) == (
        *("test_dies", "test_fault", {"failed"}, 1.5),
    )
    assert "SIGX" not in one.words
    assert "it failed" in one.words
    assert "of another kind" in one.words
    assert "words of the test" in one.output
    assert "said-dies" not in one.output
    assert other.said == {"error"}
    assert sessions.cases(tmp_path / "none.xml", tmp_path) == []


def test_a_session_that_says_too_little_is_run_in_halves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sessions = module("fault_sessions")
    faults = [fault(name=name) for name in ("one", "two", "kills_all", "four")]
    ran: list[list[str]] = []

    def run(group: list[Any], *_: Any) -> Any:
        names = [each.name for each in group]
        ran.append(names)
        found = [replace(each, file=f"test_{name}") for name in names for each in cases()]
        return sessions.Seen([] if "kills_all" in names else found, ended=True)

    monkeypatch.setattr(sessions, "run", run)
    judged = sessions.measure(faults, "pytest-forked", False, tmp_path)
    assert ran == [
        *(["one", "two", "kills_all", "four"], ["one", "two"], ["kills_all", "four"]),
        *(["kills_all"], ["four"]),
    ]
    assert {name: each[1] for name, each in judged.items()} == {
        "one": True,
        "two": True,
        "kills_all": False,
        "four": True,
    }


def test_faults_share_a_session_where_one_that_hangs_is_ended() -> None:
    groups = module("faults").groups
    faults = [fault(name=str(number), kind="crashes") for number in range(13)]
    sizes = {
        method: [len(group) for group in groups(faults, method)]
        for method in ("fork", "pytest-isolate", "pytest-forked", "none")
    }
    limited, alone = [6, 6, 1], [1] * 13
    assert sizes == {
        "fork": limited,
        "pytest-isolate": limited,
        "pytest-forked": alone,
        "none": alone,
    }


def test_what_an_earlier_run_has_judged_is_not_run_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    campaign = module("faults")
    ran: list[tuple[str, bool, str]] = []

    def measure(group: list[Any], method: str, xdist: bool, folder: Path) -> dict[str, list[bool]]:
        ran.extend((method, xdist, each.name) for each in group)
        return {each.name: [True] * 4 + [each.name == "exit_1"] for each in group}

    monkeypatch.setattr(campaign, "measure", measure)
    monkeypatch.setattr(campaign, "control", lambda *_: "")
    known, keep = ["fork -n 2", "exit_0", [False] * 5], tmp_path / "kept"
    keep.write_text(json.dumps(known) + "\n")
    arguments = ["--methods", "fork", "--only", "exit_", "--keep", str(keep)]
    for _ in range(2):
        assert campaign.main(arguments) == 1
        told = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert told["not_kept"]["fork"]["exit_0"] == "time"
        assert (
            told["not_kept"]["fork -n 2"]["exit_0"] == "outcome, others, output, nothing left, time"
        )
        assert "exit_1" not in told["not_kept"]["fork -n 2"]
    assert sorted(ran) == sorted(set(ran)), "once"
    assert ("fork", False, "exit_0") in ran
    assert ("fork", True, "exit_0") not in ran
    assert len(keep.read_text().splitlines()) == 2 * told["faults"]


def test_the_report_counts_promises_and_names_those_not_kept() -> None:
    faults, found = [fault()], {"fork": {"dies": [True, True, False, True, True]}}
    text, data = module("faults").report(faults, found, {"other": "it can't"})
    assert data["totals"]["fork"] == {
        "outcome": 1,
        "others": 1,
        "output": 0,
        "nothing left": 1,
        "time": 1,
        "all five": 0,
    }
    assert data["not_kept"] == {"fork": {"dies": "output"}}
    assert "| dies  |    p |" in text
    assert data["not_measured"] == {"other": "it can't"}
    assert "\n- not measured: other: it can't\n" in text
    assert json.loads(json.dumps(data)) == data


def plain(**fields: Any) -> Any:
    """Return what a plain session did, its passing test as said."""
    sessions, make = module("fault_sessions"), module("fault_sessions").Case
    found = [
        make(
            f"test_{each.name}",
            name,
            frozenset({"failed"}) if (each.name, name) == ("fails", "test_fault") else frozenset(),
            output=f"said-{each.name}.\n",
        )
        for each in module("fault_control").PLAIN
        for name in ("test_before", "test_fault", "test_after")
    ]
    found[1] = replace(found[1], **fields)
    return sessions.Seen(found, ended=True)


def test_a_plain_session_is_right_or_what_it_got_wrong_is_told() -> None:
    complaint, left = module("fault_control").complaint, module("fault_sessions").Left
    assert complaint("none", plain()) == ""
    assert complaint("none", replace(plain(), left=[left("a file")])) == ""
    start = "cannot run a plain test here: of one that passes it gets wrong: "
    broken = {"said": frozenset({"error"}), "words": "it died\nand more"}
    assert complaint("none", plain(**broken)) == f"{start}outcome (it died)"
    assert complaint("none", plain(output="")) == f"{start}output"
    assert complaint("none", replace(plain(), ended=False)) == f"{start}time"
    nothing = module("fault_sessions").Seen([], ended=True)
    assert complaint("none", nothing) == f"{start}outcome, others, output, time"


def test_a_way_that_gets_a_plain_session_wrong_has_no_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    campaign = module("faults")
    wrong = {"none": "it can't"}
    monkeypatch.setattr(campaign, "control", lambda method, *_: wrong.get(method, ""))
    measured: list[str] = []

    def measure(group: list[Any], method: str, *_: Any) -> dict[str, list[bool]]:
        measured.append(method)
        return {each.name: [True] * 5 for each in group}

    monkeypatch.setattr(campaign, "measure", measure)
    arguments = ["--only", "exit_0", "--xdist", "no", "--methods"]
    assert campaign.main([*arguments, "fork", "none"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["not_measured"] == wrong
    assert set(told["totals"]) == set(told["not_kept"]) == {"fork"}
    assert measured == ["fork"]
    with pytest.raises(SystemExit, match="none: it can't"):
        campaign.main([*arguments, "none"])
    wrong["fork"] = "nor this"
    with pytest.raises(SystemExit, match="fork: nor this") as ended:
        campaign.main([*arguments, "fork", "none", "helper-fork"])
    assert "none" not in str(ended.value)
    assert measured == ["fork"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "xdist", "arguments", "words"),
    [
        ("fork", False, (), ""),
        ("fork", True, (), ""),
        ("none", False, (), ""),
        ("none", True, ("-k", "not before"), "passes it gets wrong: others"),
        ("none", False, ("--capture=no",), "passes it gets wrong: output"),
        ("none", False, ("-p", "no:python"), "passes it gets wrong: outcome, others, output, time"),
    ],
)
def test_a_plain_session_is_run_in_each_way(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    method: str,
    xdist: bool,
    arguments: tuple[str, ...],
    words: str,
) -> None:
    methods = module("fault_sessions").METHODS
    given = replace(methods[method], arguments=(*methods[method].arguments, *arguments))
    monkeypatch.setitem(methods, method, given)
    said = module("fault_control").control(method, xdist, tmp_path)
    assert said == (words and f"cannot run a plain test here: of one that {words}")


def test_there_are_sixty_faults_and_more_each_with_a_name_of_its_own() -> None:
    cases_module: ModuleType = module("fault_cases")
    names = [each.name for each in cases_module.faults()]
    assert len(names) == len(set(names)) >= 60
    for each in cases_module.faults():
        compile(each.body, each.name, "exec")
        assert each.kind in cases_module.KINDS
        assert each.outcome in ("passed", "failed", "error", "skipped")
        assert not each.word or each.word not in each.body, each.name


@pytest.mark.slow
def test_a_session_with_faults_is_judged_by_what_it_does(tmp_path: Path) -> None:
    sessions, known = module("fault_sessions"), module("fault_cases").faults()
    names = ("sigsegv", "program_left", "shared_memory_left")
    faults = [each for each in known if each.name in names]
    isolated = sessions.measure(faults, "fork", False, tmp_path)
    assert {name: all(each) for name, each in isolated.items()} == dict.fromkeys(names, True)
    plain = sessions.measure(faults[1:2], "none", False, tmp_path)
    assert plain == {"program_left": [True, True, True, False, True]}
    assert not list(Path("/dev/shm").glob(f"faults-{os.getpid()}-*"))
