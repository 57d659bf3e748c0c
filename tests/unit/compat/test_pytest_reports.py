"""Private names of pytest's reports: each is there, and does what the plugin takes it for."""

from __future__ import annotations

import sys
from typing import Any

import _pytest.junitxml
import pytest

from pytest_cudafork.compat import pytest_reports
from tests.unit.compat import require


def test_pytest_still_has_the_key_of_the_junit_file() -> None:
    require("pytest", _pytest.junitxml, "xml_key", "properties in the JUnit file")


def _report(nodeid: str) -> pytest.TestReport:
    return pytest.TestReport(nodeid, ("", 0, ""), {}, "passed", None, "call")


def test_a_report_gets_the_very_id_of_its_test(request: pytest.FixtureRequest) -> None:
    item: Any = request.node
    report = _report(f"../{item.nodeid}")
    pytest_reports.use_id_of(item, report)
    assert report.nodeid == item.nodeid
    if pytest.version_tuple >= (9, 2):
        require("pytest", item, "_id", "the memory that reports of children take")
        require("pytest", report, "_id", "the memory that reports of children take")
        assert vars(report)["_id"] is item._id


def test_a_report_without_an_id_of_its_own_gets_the_text(request: pytest.FixtureRequest) -> None:
    item: Any = request.node

    class Report:
        """One of an older pytest: its id is text."""

        nodeid = "../it"

    report: Any = Report()
    pytest_reports.use_id_of(item, report)
    assert vars(report) == {"nodeid": item.nodeid}


def test_only_pytest_itself_serializes_reports(pytester: pytest.Pytester) -> None:
    config = pytester.parseconfig("-p", "no:xdist")
    assert pytest_reports.only_pytest_serializes(config)

    class Plugin:
        """One that reads reports in its own way."""

        def pytest_report_from_serializable(self, data: Any) -> None:
            """Leave it to pytest."""

    config.pluginmanager.register(Plugin())
    assert not pytest_reports.only_pytest_serializes(config)


@pytest.mark.parametrize("without", ["", "reports", "subtests"])
def test_a_report_becomes_data_and_a_report_again(pytester: pytest.Pytester, without: str) -> None:
    config = pytester.parseconfig(*([f"-pno:{without}"] if without else []))
    data = pytest_reports.to_plain(config, _report("it"))
    assert pytest_reports.from_plain(config, data).nodeid == "it"


@pytest.mark.skipif(pytest.version_tuple < (9, 0), reason="subtests came with pytest 9")
def test_a_report_of_a_subtest_does_so_without_their_plugin(pytester: pytest.Pytester) -> None:
    subtests: Any = sys.modules["_pytest.subtests"]
    config = pytester.parseconfig("-pno:subtests", "-pno:reports")
    context = subtests.SubtestContext(msg="part", kwargs={})
    report = subtests.SubtestReport._new(
        _report("it"), context, captured_output=None, captured_logs=None
    )
    data = pytest_reports.to_plain(config, report)
    assert pytest_reports.from_plain(config, data).context.msg == "part"


def test_the_id_of_a_test_makes_a_report_of_it(request: pytest.FixtureRequest) -> None:
    made = pytest_reports.id_of(request.node)
    assert pytest.TestReport(made, ("", 0, ""), {}, "passed", None, "call").nodeid == (
        request.node.nodeid
    )


def test_the_junit_file_is_found_and_forgotten(pytester: pytest.Pytester) -> None:
    config = pytester.parseconfigure("--junit-xml=out.xml")
    xml = pytest_reports.junit_xml(config)
    for name in ("global_properties", "node_reporters", "node_reporter", "add_global_property"):
        require("pytest", xml, name, "properties in the JUnit file")
    config.pluginmanager.unregister(xml)
    pytest_reports.forget_junit_xml(config)
    assert pytest_reports.junit_xml(config) is None
    pytest_reports.forget_junit_xml(config)


def test_failed_subtests_are_counted_in_the_stash(pytestconfig: pytest.Config) -> None:
    if pytest.version_tuple < (9,):
        assert pytest_reports.subtest_counts(pytestconfig) is None
        return
    import _pytest.subtests

    require("pytest", _pytest.subtests, "failed_subtests_key", "failed subtests of a child")
    counts = pytest_reports.subtest_counts(pytestconfig)
    assert counts is pytestconfig.stash[_pytest.subtests.failed_subtests_key]


def test_arguments_of_a_subtest_stand_in_its_serialized_report() -> None:
    if pytest.version_tuple >= (9,):
        from _pytest.subtests import SubtestContext, SubtestReport

        report: Any = SubtestReport(
            nodeid="it", location=("", 0, ""), keywords={}, outcome="passed", longrepr=None,
            when="call", context=SubtestContext(msg=None, kwargs={"i": 1}),
        )  # fmt: skip
        arguments = pytest_reports.subtest_arguments(report._to_json())
        assert list(arguments) == ["i"]
    assert pytest_reports.subtest_arguments({}) == {}


def test_sections_of_a_report_become_the_tests_once(pytester: pytest.Pytester) -> None:
    item = pytester.getitem("def test_func(): pass")
    item.add_report_section("setup", "stdout", "up")
    sections = [("Captured stdout setup", "up"), ("Captured log call", "body"), ("Other", "x")]
    pytest_reports.add_sections(item, sections)
    known = [("setup", "stdout", "up"), ("call", "log", "body")]
    assert pytest_reports.sections_of(item) == known


def test_the_reports_of_subtests_are_of_another_type() -> None:
    class SubtestReport(pytest.TestReport):
        pass

    assert not pytest_reports.is_of_subtest(_report("test_a"))
    assert pytest_reports.is_of_subtest(SubtestReport("a", ("", 0, ""), {}, "passed", None, "call"))
