"""An audit as a document and as problems."""

from __future__ import annotations

from pathlib import Path

from pytest_cudafork import ImportVerdict as V
from pytest_cudafork.documents.problem import Place
from pytest_cudafork.imports.audit.baseline import Baseline, Entry
from pytest_cudafork.imports.audit.confirm import CheckedRecord
from pytest_cudafork.imports.report.document import audit_document, audit_problems
from pytest_cudafork.imports.report.findings import Findings
from pytest_cudafork.imports.values.left_behind import EnvironmentRead, RunningThread, Traces
from pytest_cudafork.imports.values.records import ImportRecord
from pytest_cudafork.imports.values.targets import FoundModule
from pytest_cudafork.observe.story.touch import Touch
from pytest_cudafork.settings.import_settings import ImportSettings
from tests.support.documents import validated

MACHINERY = ["<frozen importlib._bootstrap>", 1, "_call_with_frames_removed", 3]


def record(root: Path, module: str, verdict: V, line: int = 0) -> ImportRecord:
    """Return a record; with a line, one that touches in ``a.py``."""
    stack = [[str(root / "a.py"), line, "<module>", 0], MACHINERY]
    touch = Touch.from_record({"id": "7-1", "pid": 7, "entry": "cuInit", "stack": stack})
    return ImportRecord(module, "pkg", verdict, touches=(touch,) if line else (), reason="a reason")


def findings(root: Path, *records: ImportRecord, entries: tuple[Entry, ...] = ()) -> Findings:
    """Return what an audit found."""
    modules = [FoundModule(name, str(root / f"{name}.py")) for name in ("pkg.a", "pkg.b", "pkg.c")]
    checked = tuple(CheckedRecord(each, "said otherwise") for each in records)
    return Findings(checked, {"pkg": modules}, ImportSettings(), Baseline(entries), str(root))


def test_the_document_has_each_module_and_keeps_to_the_schema(tmp_path: Path) -> None:
    preload = ImportRecord(
        "pkg.b",
        "pkg",
        V.CLEAN,
        running=(RunningThread("t", "/p/x.py:1", True),),
        traces=Traces((EnvironmentRead("HOME", "/p/x.py:2", True),), ("/dev/null",), ("cuda",)),
    )
    found = findings(tmp_path, record(tmp_path, "pkg.a", V.TOUCHES, 3), preload)
    made = validated(audit_document(found), "audit")
    assert made["good"] is False
    assert made["packages"] == {"pkg": 3}
    where = f"{tmp_path}/a.py:3"
    assert made["culprits"] == [{"culprit": where, "scope": "module body", "modules": ["pkg.a"]}]
    first, second = made["modules"]
    assert (first["verdict"], first["outcome"], first["where"]) == ("touches", "failed", where)
    assert first["artifact"] == "said otherwise"
    assert first["touches"][0]["at_import"] is True
    assert second["traces"]["environment"] == [
        {"name": "HOME", "where": "/p/x.py:2", "is_set": True}
    ]


def test_it_is_good_where_nothing_is_wrong_and_nothing_was_left_out(tmp_path: Path) -> None:
    known = Entry("pkg.a", "a.py:3")
    good = findings(
        tmp_path,
        record(tmp_path, "pkg.a", V.TOUCHES, 3),
        record(tmp_path, "pkg.b", V.NOT_IMPORTABLE),
        entries=(known,),
    )
    assert validated(audit_document(good), "audit")["good"] is True
    for verdict in (V.CRASHED, V.NOT_OBSERVABLE, V.TIMED_OUT):
        bad = findings(tmp_path, record(tmp_path, "pkg.b", verdict))
        assert validated(audit_document(bad), "audit")["good"] is False


def test_one_line_is_one_problem_however_many_modules_reach_it(tmp_path: Path) -> None:
    found = findings(
        tmp_path,
        record(tmp_path, "pkg.a", V.TOUCHES, 3),
        record(tmp_path, "pkg.b", V.TOUCHES, 3),
        record(tmp_path, "pkg.c", V.CRASHED),
        record(tmp_path, "pkg.b", V.CLEAN),
    )
    touch, crash = audit_problems(found, str(tmp_path))
    assert (touch.rule, touch.level, touch.accepted) == ("touch-at-import", "error", "")
    assert touch.place == Place(str(tmp_path / "a.py"), 3)
    assert touch.test == "pkg::pkg.a"
    assert touch.steps
    assert (crash.rule, crash.place) == ("import-broken", Place(str(tmp_path / "pkg.c.py"), 1))


def test_what_is_accepted_or_was_not_seen_is_no_error(tmp_path: Path) -> None:
    found = findings(
        tmp_path,
        record(tmp_path, "pkg.a", V.TOUCHES, 3),
        record(tmp_path, "pkg.b", V.NOT_OBSERVABLE),
        entries=(Entry("pkg.a", "a.py:3"),),
    )
    known, unseen = audit_problems(found, "/elsewhere")
    assert (known.level, known.accepted) == ("note", "in the baseline of the import audit")
    assert (unseen.rule, unseen.level, unseen.place) == ("not-observable", "warning", None)
