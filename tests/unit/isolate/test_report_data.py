"""Tests of what a report says beyond pytest's own serialization."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from _pytest._io import TerminalWriter

from pytest_cudafork.compat import pytest_reports
from pytest_cudafork.isolate.child.reporter import ReportPacker
from pytest_cudafork.isolate.report_data import SAME, Shown, likeness, load
from pytest_cudafork.process.protocol import frames


def _written(longrepr: Any, *, colors: bool) -> str:
    file = io.StringIO()
    writer = TerminalWriter(file)
    writer.hasmarkup = colors
    longrepr.toterminal(writer)
    return file.getvalue()


def test_a_representation_is_written_with_the_colors_of_the_terminal() -> None:
    shown = Shown("plain\n", "\x1b[31mplain\x1b[0m\n")
    for marked, text in ((False, "plain\n"), (True, "\x1b[31mplain\x1b[0m\n")):
        file = io.StringIO()
        writer = TerminalWriter(file)
        writer.hasmarkup = marked
        shown.toterminal(writer)
        assert file.getvalue() == text
    assert str(shown) == "plain"


@pytest.fixture
def item(request: pytest.FixtureRequest) -> pytest.Item:
    """The test itself, whose session stands for the child's and the parent's."""
    node: pytest.Item = request.node
    return node


def _report(item: pytest.Item, longrepr: Any = None, **changes: Any) -> pytest.TestReport:
    given = {
        "nodeid": item.nodeid,
        "location": item.location,
        "keywords": {item.name: 1},
        "outcome": "failed" if longrepr else "passed",
        "longrepr": longrepr,
        "when": "call",
        "sections": [("Captured stdout call", "text")],
        "duration": 0.5,
        "user_properties": [("key", 1)],
        **changes,
    }
    return pytest.TestReport(**given)


def _pack(item: pytest.Item, report: pytest.TestReport) -> dict[str, Any]:
    packer = ReportPacker(item.config)
    packer.begin()
    return packer.pack(report)


def test_a_report_comes_back_as_it_was(item: pytest.Item) -> None:
    report = _report(item)
    back = load(item, _pack(item, report))
    for name in ("nodeid", "location", "outcome", "when", "sections", "duration", "keywords"):
        assert getattr(back, name) == getattr(report, name), name
    assert back.user_properties == [("key", 1)]
    assert back.longrepr is None


def test_a_report_from_another_directory_is_the_items_own(item: pytest.Item) -> None:
    data = _pack(item, _report(item, nodeid=f"../{item.nodeid}"))
    back = load(item, data)
    assert back.nodeid is item.nodeid
    assert back.location is item.location


def test_reports_share_their_words_and_their_id(item: pytest.Item) -> None:
    """A session keeps all reports: what each had for itself would pile up."""
    data = _pack(item, _report(item))
    read = [load(item, frames.loads(frames.dumps(data))) for _ in range(2)]
    for name in ("outcome", "when", "nodeid", "location"):
        first, second = (getattr(report, name) for report in read)
        assert first is second, name
    assert all(getattr(report, "id", None) is getattr(item, "id", None) for report in read)
    assert vars(read[0]).keys() == vars(_report(item)).keys()  # and nothing is left of the way


def _packed(item: pytest.Item, *reports: pytest.TestReport) -> list[dict[str, Any]]:
    """Pack the reports of one test, one after the other."""
    packer = ReportPacker(item.config)
    packer.begin()
    packer.begin_test()
    return [packer.pack(report) for report in reports]


def _passed(item: pytest.Item, when: str, **changes: Any) -> pytest.TestReport:
    given = {"sections": [], "user_properties": [], "start": 1.0, "stop": 1.5}
    return _report(item, when=when, **{**given, **changes})


def test_a_passed_phase_travels_without_what_the_one_before_has_said(item: pytest.Item) -> None:
    setup, call = _passed(item, "setup"), _passed(item, "call", duration=0.25, stop=1.25)
    first, second = _packed(item, setup, call)
    assert second == {
        "when": "call",
        "outcome": "passed",
        "duration": 0.25,
        "start": 1.0,
        "stop": 1.25,
        SAME: True,
    }
    before = likeness(load(item, first))
    back = load(item, frames.loads(frames.dumps(second)), before)
    assert vars(back) == vars(call)
    assert back.keywords is not before.keywords  # a plugin may write into one of them


NOTEWORTHY: dict[str, dict[str, Any]] = {
    "a failure": {"longrepr": "it failed", "outcome": "failed"},
    "a skip": {"longrepr": ("a.py", 1, "Skipped: so"), "outcome": "skipped"},
    "output": {"sections": [("Captured stdout call", "text")]},
    "properties": {"user_properties": [("key", 1)]},
    "a keyword": {"keywords": {"late": 1}},
    "a place": {"location": ("elsewhere.py", 3, "it")},
    "something of a plugin's": {"wasxfail": "reason"},
    "a time of another kind": {"duration": 1},
}


@pytest.mark.parametrize("changes", NOTEWORTHY.values(), ids=NOTEWORTHY)
def test_a_report_that_says_more_travels_whole_and_so_does_the_next(
    changes: dict[str, Any], item: pytest.Item
) -> None:
    reports = [_passed(item, "setup"), _passed(item, "call", **changes), _passed(item, "teardown")]
    packed = _packed(item, *reports)
    assert not any(SAME in data for data in packed)
    back = load(item, packed[1], likeness(reports[0]))
    assert back.longrepr == reports[1].longrepr
    assert back.keywords == reports[1].keywords


def test_the_first_report_of_a_test_is_whole(item: pytest.Item) -> None:
    packer = ReportPacker(item.config)
    packer.begin()
    for _ in range(2):
        packer.begin_test()
        assert SAME not in packer.pack(_passed(item, "setup"))
        assert SAME in packer.pack(_passed(item, "call"))


def test_reports_are_whole_where_a_plugin_serializes_them(pytester: pytest.Pytester) -> None:
    class Plugin:
        """One that has a part in how reports travel."""

        def pytest_report_to_serializable(self, report: Any) -> None:
            """Leave it to pytest."""

    item = pytester.getitem("def test_it(): pass", "test_it")
    item.config.pluginmanager.register(Plugin())
    packed = _packed(item, _passed(item, "setup"), _passed(item, "call"))
    assert not any(SAME in data for data in packed)


def test_a_report_that_is_like_none_or_lacks_a_time_is_refused(item: pytest.Item) -> None:
    report = _passed(item, "setup")
    _, data = _packed(item, report, report)
    with pytest.raises(LookupError, match="no report before"):
        load(item, dict(data))
    del data["start"]
    with pytest.raises(LookupError):
        load(item, data, likeness(report))


class _Colored:
    """A representation other than a traceback."""

    def toterminal(self, writer: Any) -> None:
        writer.line("not found", red=True)

    def __str__(self) -> str:
        return "not found"


def test_a_representation_that_pytest_turns_into_text_keeps_its_colors(item: pytest.Item) -> None:
    back = load(item, _pack(item, _report(item, _Colored())))
    assert isinstance(back.longrepr, Shown)
    assert _written(back.longrepr, colors=False) == "not found\n"
    assert _written(back.longrepr, colors=True) == "\x1b[31mnot found\x1b[0m\n"


def test_one_that_cannot_be_written_again_is_text(item: pytest.Item) -> None:
    class Broken(_Colored):
        def toterminal(self, writer: Any) -> None:
            raise RuntimeError("only once")

    assert load(item, _pack(item, _report(item, Broken()))).longrepr == "not found"


def test_what_is_no_report_of_a_test_is_refused(item: pytest.Item) -> None:
    data = _pack(item, _report(item))
    collected = {**data, "$report_type": "CollectReport", "result": None}
    with pytest.raises(TypeError, match="no report of a test"):
        load(item, collected)
    with pytest.raises((LookupError, TypeError)):
        load(item, {})


class _Xml:
    """What pytest keeps for the JUnit file."""

    def __init__(self) -> None:
        self.global_properties: list[tuple[str, object]] = []
        self.node_reporters: dict[tuple[str, object], Any] = {}

    def add_global_property(self, name: str, value: object) -> None:
        self.global_properties.append((name, value))

    def node_reporter(self, nodeid: str) -> Any:
        reporter = SimpleNamespace(attrs={})
        return self.node_reporters.setdefault((nodeid, None), reporter)


def test_properties_of_the_suite_and_attributes_of_the_case_reach_the_other_junit_file(
    item: pytest.Item, monkeypatch: pytest.MonkeyPatch
) -> None:
    child, parent = _Xml(), _Xml()
    monkeypatch.setattr(pytest_reports, "junit_xml", lambda config: child)
    child.add_global_property("before the fork", 0)
    packer = ReportPacker(item.config)
    packer.begin()
    child.add_global_property("suite", 1)
    child.node_reporter(item.nodeid).attrs["assertions"] = "7"
    child.node_reporter("another.py::test").attrs["assertions"] = "8"
    first, second = packer.pack(_report(item)), packer.pack(_report(item))
    monkeypatch.setattr(pytest_reports, "junit_xml", lambda config: parent)
    load(item, first)
    load(item, second)
    assert parent.global_properties == [("suite", 1)]  # once
    assert {key[0]: one.attrs for key, one in parent.node_reporters.items()} == {
        item.nodeid: {"assertions": "7"}
    }


def test_the_count_of_failed_subtests_is_that_of_the_other_session(
    item: pytest.Item, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = _report(item)
    key = getattr(report, "id", report.nodeid)
    counts: dict[Any, int] = {key: 3}
    monkeypatch.setattr(pytest_reports, "subtest_counts", lambda config: counts)
    data = _pack(item, report)
    counts.clear()
    back = load(item, data)
    assert counts == {getattr(back, "id", back.nodeid): 3}
