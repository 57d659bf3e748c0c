"""The summary of an audit: one line of code is one fix."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from pytest_cudafork import ImportRecord, ImportVerdict
from pytest_cudafork.imports.audit.baseline import Baseline, Entry
from pytest_cudafork.imports.audit.confirm import CheckedRecord
from pytest_cudafork.imports.audit.discover import find_modules
from pytest_cudafork.imports.report.findings import Findings
from pytest_cudafork.imports.report.summary import Line, summary_lines, write_results
from pytest_cudafork.imports.values.left_behind import RunningThread
from pytest_cudafork.imports.values.targets import FoundModule
from pytest_cudafork.observe.story.touch import Touch
from pytest_cudafork.settings.import_settings import ImportSettings
from tests.support.imports import TOUCH, audit_here, write_package

V = ImportVerdict


def record(module: str, verdict: V, where: str = "", without: str = "") -> ImportRecord:
    """Return a record of a module of ``pkg``; ``where`` is a culprit line, or a reason."""
    if not verdict.touched:
        return ImportRecord(module, "pkg", verdict, without, reason=where)
    file, _, line = where.partition(":")
    stack = [[f"/base/{file}", int(line), "<module>", 0]]
    touch = Touch.from_record({"id": "1-1", "pid": 1, "t": 1, "entry": "cuInit", "stack": stack})
    return ImportRecord(module, "pkg", verdict, without, touches=(touch,))


def lines_of(
    records: Sequence[ImportRecord],
    settings: ImportSettings | None = None,
    entries: Sequence[Entry] = (),
    artifacts: Mapping[str, str] | None = None,
    full: bool = False,
) -> list[str]:
    artifacts = artifacts or {}
    checked = tuple(CheckedRecord(each, artifacts.get(each.module, "")) for each in records)
    names = dict.fromkeys(each.module for each in records)
    found = [FoundModule(name, f"/base/{name}.py", False) for name in names]
    findings = Findings(
        checked, {"pkg": found}, settings or ImportSettings(), Baseline(entries), "/base"
    )
    return [line.text for line in summary_lines(findings, full=full)]


def test_lines_are_sorted_by_how_many_modules_reach_them() -> None:
    records = [record(f"pkg.m{number}", V.TOUCHES, "a.py:1") for number in range(3)]
    records += [record(f"pkg.n{number}", V.TOUCHES, "b.py:2") for number in range(12)]
    records += [record("pkg.z", V.TOUCHES_THEN_FAILS, "b.py:2")]
    lines = lines_of(records)
    heads = [line for line in lines if line.endswith("modules") and not line.startswith("  ")]
    assert heads == ["b.py:2 (module body): 13 modules", "a.py:1 (module body): 3 modules"]
    assert lines[-1] == (
        "pkg: 16 modules: 15 initialize CUDA, 1 initialize CUDA, then fail to import"
    )


def test_a_touch_without_a_python_stack_has_no_line() -> None:
    data = {"id": "1-1", "pid": 1, "t": 1, "entry": "cuInit", "library": "/x.so"}
    touches = (Touch.from_record(data),)
    records = [ImportRecord(f"pkg.{name}", "pkg", V.TOUCHES, touches=touches) for name in "ab"]
    settings = ImportSettings(baseline="/base/known.toml")
    lines = lines_of(records, settings, [Entry("pkg.a", "no Python stack")])
    assert lines[0] == "no Python stack: 2 modules, 1 of them in the baseline"


def test_very_many_lines_are_not_all_shown() -> None:
    records = [record(f"pkg.m{number}", V.TOUCHES, f"f{number:02}.py:1") for number in range(50)]
    lines = lines_of(records)
    assert "... and 20 more lines (-v names them)" in lines
    assert len([line for line in lines if "(module body)" in line]) == 30
    assert len(lines) < 60


def test_trouble_with_one_reason_is_told_together() -> None:
    records = [record(f"pkg.m{number}", V.CRASHED, "it fell over") for number in range(8)]
    records += [record("pkg.slow", V.TIMED_OUT, "its import took longer than 3 s")]
    records += [record("pkg.blind", V.NOT_OBSERVABLE, "no eyes", without="lib")]
    records += [record(f"pkg.e{number}", V.NOT_IMPORTABLE, f"E{number % 7}") for number in range(9)]
    lines = lines_of(records)
    assert lines[:3] == [
        "crashed: pkg.m0, pkg.m1, pkg.m2, pkg.m3, pkg.m4 and 3 more: it fell over",
        "timed out: pkg.slow: its import took longer than 3 s",
        "not observable: pkg.blind[without lib]: no eyes",
    ]
    assert lines[3:6] == [
        "not importable: pkg.e0, pkg.e7: E0",
        "not importable: pkg.e1, pkg.e8: E1",
        "not importable: pkg.e2: E2",
    ]
    at = lines.index("... and 2 modules for 2 more reasons (-v names them)")
    assert lines[at : at + 2] == [
        "... and 2 modules for 2 more reasons (-v names them)",
        "nothing is known of these 9: with --cuda-fork-imports-strict (imports --strict) such "
        "modules fail",
    ]
    strict = lines_of(records, ImportSettings(strict=True))
    assert not [line for line in strict if line.startswith("nothing is known")]


def test_in_full_every_module_is_named() -> None:
    records = [record(f"pkg.c{number}", V.CRASHED, f"C{number % 12}") for number in range(24)]
    records += [
        record(f"pkg.e{number}", V.NOT_IMPORTABLE, f"E{number % 9}") for number in range(90)
    ]
    records += [record(f"pkg.t{number}", V.TOUCHES, f"{number}.py:1") for number in range(40)]
    text = "\n".join(lines_of(records, full=True))
    for each in records:
        shown = each.where.removeprefix("/base/") if each.verdict.touched else each.module
        assert re.search(rf"{re.escape(shown)}\b", text), each.module
    assert "more" not in text
    assert text.count("change the line itself") == 40
    short = "\n".join(lines_of(records))
    assert "... and 4 modules for 2 more reasons (-v names them)" in short
    assert "... and 40 modules for 4 more reasons (-v names them)" in short


def test_why_no_import_is_named_is_said_once() -> None:
    records = [record(f"pkg.m{number}", V.TOUCHES, f"{number}.py:1") for number in range(4)]
    lines = [line for line in lines_of(records) if "change the line itself" in line]
    assert lines == [
        "  change the line itself: no import that can be made lazy frees a module",
        *["  change the line itself"] * 3,
    ]


def test_a_touch_before_a_crash_or_a_time_limit_is_told() -> None:
    crash = record("pkg.ends", V.TOUCHES_THEN_CRASHES, "a.py:3")
    crash = dataclasses.replace(crash, reason="it fell over")
    hang = dataclasses.replace(
        crash, module="pkg.hangs", verdict=V.TIMED_OUT, reason="it took too long"
    )
    lines = lines_of([crash, hang])
    assert lines[0] == "a.py:3 (module body): 1 module"
    assert lines[2:] == [
        "initializes CUDA, then crashes: pkg.ends: it fell over",
        "timed out: pkg.hangs: it took too long; before that it initialized CUDA at a.py:3",
        "pkg: 2 modules: 1 initialize CUDA, then crash, 1 timed out",
    ]


def test_artifacts_are_owned_up_to() -> None:
    lines = lines_of([record("pkg.m", V.CLEAN)], artifacts={"pkg.m": "touches at a.py:1"})
    assert lines[0] == (
        "artifact: pkg.m was touches at a.py:1 when forked from the template; a fresh interpreter "
        "says clean, which counts"
    )


def test_a_baseline_shows_in_the_lines() -> None:
    entries = [Entry("pkg.a", "a.py:1"), Entry("pkg.gone", "x.py:1")]
    records = [record("pkg.a", V.TOUCHES, "a.py:1"), record("pkg.b", V.TOUCHES, "a.py:1")]
    settings = ImportSettings(baseline="/base/known.toml")
    lines = lines_of(records, settings, entries)
    assert lines[0] == "a.py:1 (module body): 2 modules, 1 of them in the baseline"
    assert "remove from known.toml: pkg.gone, it is clean or gone" in lines
    assert lines_of(records[:1], settings, entries)[0].endswith(": 1 module, all in the baseline")


def test_the_summary_of_nothing_is_nothing() -> None:
    assert lines_of([]) == []


ENGINE = {
    "__init__": "",
    "ops/__init__": "from engine.ops import attention\nfrom engine.ops import plain",
    "ops/attention": f"class Kernel:\n    {TOUCH}",
    "ops/plain": "",
    **{f"models/m{number}": "from engine.ops.plain import *" for number in range(6)},
    "models/__init__": "",
    "direct": "import engine.ops.attention",
    "alone": "import json",
}


@pytest.mark.slow
def test_it_names_the_import_to_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_package(tmp_path, "engine", ENGINE)
    records = tuple(audit_here("engine", tmp_path, confirm=False).values())
    monkeypatch.syspath_prepend(str(tmp_path))
    found = {"engine": find_modules("engine")}
    checked = tuple(map(CheckedRecord, records))
    findings = Findings(checked, found, ImportSettings(), Baseline(), str(tmp_path))
    lines = [line.text for line in summary_lines(findings)]
    assert lines[0] == "engine/ops/attention.py:2 (class body): 10 modules"
    wish = (
        "  make `engine/ops/__init__.py:1` (engine.ops imports engine.ops.attention) lazy: "
        "frees 8 of 10"
    )
    assert wish in lines
    assert lines[-1] == "engine: 13 modules: 3 clean, 10 initialize CUDA"

    # and so it is
    lazy = write_package(tmp_path, "engine", {"ops/__init__": "from engine.ops import plain"})
    assert lazy.is_dir()
    after = audit_here("engine", tmp_path, confirm=False).values()
    assert sum(each.verdict is V.TOUCHES for each in after) == 2


def hidden(module: str, verdict: V, where: str = "", library: str = "lib") -> ImportRecord:
    return record(module, verdict, where, library)


def test_what_a_hidden_library_changes_is_told() -> None:
    plain = [
        record("pkg.a", V.TOUCHES, "a.py:3"),
        record("pkg.b", V.CLEAN),
        record("pkg.c", V.CLEAN),
    ]
    changed = [
        hidden("pkg.a", V.CLEAN, library="json"),
        hidden("pkg.b", V.NOT_IMPORTABLE, "ImportError: no", "json"),
        hidden("pkg.c", V.TOUCHES, "c.py:9", "json"),
    ]
    lines = lines_of([*plain, *changed], ImportSettings(without=("json",)))
    assert lines[2:7] == [
        "without json: 1 module no longer touch CUDA (a.py:3): json makes the difference",
        "only without json:",
        "  c.py:9 (module body): 1 module",
        "    change the line itself: no import that can be made lazy frees a module",
        "without json: 1 module cannot be imported: pkg.b",
    ]
    assert lines[-1] == (
        "pkg without json: 3 modules: 1 clean, 1 initialize CUDA, 1 not importable"
    )


def test_a_hidden_library_that_changes_nothing_or_is_not_there_is_told() -> None:
    records = [record("pkg.a", V.CLEAN), hidden("pkg.a", V.CLEAN, library="json")]
    assert "without json: the same verdicts" in lines_of(records, ImportSettings(without=("json",)))
    lines = lines_of(records[:1], ImportSettings(without=("no_such_library",)))
    assert lines[0] == (
        "without no_such_library: it is not installed here, so to hide it changes nothing"
    )


def test_what_was_confirmed_is_counted() -> None:
    running = (RunningThread("server", "/base/a.py:2", False),)
    records = [
        record("pkg.a", V.TOUCHES, "a.py:1"),
        record("pkg.b", V.CLEAN),
        dataclasses.replace(record("pkg.c", V.CLEAN), running=running),
        record("pkg.d", V.CRASHED, "by SIGSEGV"),
        record("pkg.e", V.TIMED_OUT, "too long"),
        record("pkg.f", V.NOT_IMPORTABLE, "ImportError: no"),
    ]
    lines = lines_of([dataclasses.replace(each, confirmed=True) for each in records])
    assert (
        "confirmed in a fresh interpreter: 1 culprit line, 1 clean module, 1 module clean so far, "
        "2 crashes and time limits, 1 failing import"
    ) in lines
    assert "clean so far: pkg.c: 1 thread still runs (server, started at a.py:2)" in lines


@pytest.mark.parametrize(
    ("line", "markup"),
    [
        (Line("x", "bad"), {"red": True, "bold": True}),
        (Line("x", "good"), {"green": True}),
        (Line("x"), {}),
    ],
)
def test_a_line_has_the_looks_of_its_tone(line: Line, markup: dict[str, bool]) -> None:
    assert line.markup == markup


def written(folder: Path, settings: ImportSettings, *, complete: bool = True) -> list[Line]:
    checked = (CheckedRecord(record("pkg.a", V.TOUCHES, "a.py:1")),)
    found = {"pkg": [FoundModule("pkg.a", "/base/a.py")]}
    findings = Findings(checked, found, settings, Baseline(), "/base", complete)
    return write_results(findings)


def test_the_baseline_and_the_picture_are_written(tmp_path: Path) -> None:
    file, page, dot = (str(tmp_path / name) for name in ("known.toml", "g.html", "g.dot"))
    assert written(tmp_path, ImportSettings(baseline=file, update=True)) == [
        Line(f"baseline: {file} (1 entry)")
    ]
    assert '"pkg.a" = "a.py:1"' in Path(file).read_text()
    assert written(tmp_path, ImportSettings(graph=page)) == [Line(f"graph: {page}")]
    assert "<html" in Path(page).read_text()
    assert written(tmp_path, ImportSettings(graph=dot)) == [Line(f"graph: {dot}")]
    assert Path(dot).read_text().startswith("//")
    assert written(tmp_path, ImportSettings()) == []


def test_what_cannot_be_written_is_told(tmp_path: Path) -> None:
    gone = ImportSettings(baseline=f"{tmp_path}/no/such.toml", update=True)
    (line,) = written(tmp_path, gone)
    assert line.tone == "bad"
    assert "cannot be written" in line.text
    (line,) = written(tmp_path, ImportSettings(graph=f"{tmp_path}/no/g.dot"))
    assert line.text.startswith("the graph cannot be written: ")
    (line,) = written(tmp_path, gone, complete=False)
    assert line == Line("the baseline was not written: the audit did not come to its end", "bad")
