"""What an audit found, taken together: outcomes, counts, and what a hidden library changes."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_cudafork import ImportRecord
from pytest_cudafork import ImportVerdict as V
from pytest_cudafork.imports.audit.baseline import Baseline, Entry
from pytest_cudafork.imports.audit.confirm import CheckedRecord
from pytest_cudafork.imports.report.findings import Findings
from pytest_cudafork.imports.values.records import Outcome
from pytest_cudafork.imports.values.targets import FoundModule
from pytest_cudafork.observe.story.touch import Touch
from pytest_cudafork.settings.import_settings import ImportSettings


def record(module: str, verdict: V, line: int = 0, without: str = "") -> ImportRecord:
    touches: tuple[Touch, ...] = ()
    if line:
        stack = [["/base/a.py", line, "<module>", 0]]
        touches = (Touch.from_record({"id": "7-1", "pid": 7, "stack": stack}),)
    return ImportRecord(module, "pkg", verdict, without, touches)


def findings(
    records: Sequence[ImportRecord], settings: ImportSettings | None = None, *entries: Entry
) -> Findings:
    modules = [FoundModule(name, "") for name in ("pkg", "pkg.a", "pkg.b", "pkg.c")]
    checked = tuple(map(CheckedRecord, records))
    options = settings or ImportSettings()
    return Findings(checked, {"pkg": modules}, options, Baseline(entries), "/base")


def test_an_outcome_depends_on_the_baseline_and_the_options() -> None:
    hot, broken = record("pkg.a", V.TOUCHES, 3), record("pkg.b", V.NOT_IMPORTABLE)
    plain = findings([hot, broken])
    assert [plain.outcome(each) for each in plain.records] == [Outcome.FAILED, Outcome.SKIPPED]
    strict = findings([hot, broken], ImportSettings(strict=True), Entry("pkg.a", "a.py:1"))
    assert [strict.outcome(each) for each in strict.records] == [Outcome.ACCEPTED, Outcome.FAILED]
    update = findings([hot], ImportSettings(baseline="known.toml", update=True))
    assert update.outcome(hot) is Outcome.ACCEPTED


def test_records_are_counted_by_package_library_and_verdict() -> None:
    records = [record("pkg", V.CLEAN), record("pkg.a", V.CLEAN), record("pkg", V.CLEAN, 0, "lib")]
    found = findings([*records, record("pkg.b", V.CRASHED)])
    assert found.counts == {
        ("pkg", ""): {V.CLEAN: 2, V.CRASHED: 1},
        ("pkg", "lib"): {V.CLEAN: 1},
    }


def test_what_is_drawn_is_the_package_as_it_is_or_what_there_is() -> None:
    hidden = record("pkg.a", V.TOUCHES, 3, "lib")
    assert findings([hidden, record("pkg", V.CLEAN)]).main == (record("pkg", V.CLEAN),)
    assert findings([hidden]).main == (hidden,)
    assert findings([]).main == ()


def test_culprit_lines_come_with_the_modules_that_reach_them() -> None:
    found = findings([record("pkg.a", V.TOUCHES, 3), record("pkg.b", V.TOUCHES, 3)])
    (culprit,) = found.culprits
    assert (culprit.where, culprit.modules) == ("/base/a.py:3", ("pkg.a", "pkg.b"))
    assert set(found.graph.modules) == {"pkg", "pkg.a", "pkg.b", "pkg.c"}
    assert findings([record("pkg", V.CLEAN)]).culprits == []


def test_entries_are_stale_unless_their_module_was_excluded() -> None:
    entries = (Entry("pkg.a", "a.py:1"), Entry("pkg.gone", "gone.py:1"))
    records = [record("pkg.a", V.CLEAN)]
    assert [each.module for each in findings(records, None, *entries).stale] == [
        "pkg.a",
        "pkg.gone",
    ]
    excluded = findings(records, ImportSettings(exclude=("pkg.g*",)), *entries)
    assert [each.module for each in excluded.stale] == ["pkg.a"]


def test_a_hidden_library_frees_some_loses_some_and_makes_others_touch() -> None:
    settings = ImportSettings(without=("json", "no_such_library.deep", "a+b"))
    plain = [
        record("pkg.a", V.TOUCHES, 3),
        record("pkg.b", V.CLEAN),
        record("pkg.c", V.CLEAN),
    ]
    without = [
        record("pkg.a", V.CLEAN, 0, "json"),
        record("pkg.b", V.NOT_IMPORTABLE, 0, "json"),
        record("pkg.c", V.TOUCHES, 9, "json"),
    ]
    same = [
        record(each.module, each.verdict, 3 if each.touches else 0, "no_such_library.deep")
        for each in plain
    ]
    first, second, third = findings([*plain, *without, *same], settings).differences
    assert (first.library, first.installed, first.same) == ("json", True, False)
    assert first.freed == {"/base/a.py:3": ("pkg.a",)}
    assert first.lost == ("pkg.b",)
    assert [each.where for each in first.culprits] == ["/base/a.py:9"]
    assert (second.installed, second.same, second.culprits) == (False, True, ())
    assert (third.library, third.installed) == ("a+b", False)
