"""The hooks hand over: which part of the plugin takes part in a session, and when."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork import plugin
from pytest_cudafork.capture.interface.check_names import CARRIED
from pytest_cudafork.capture.story import remarks, verdicts
from pytest_cudafork.capture.story.findings import CheckLog
from pytest_cudafork.check.session import SESSION
from pytest_cudafork.report import terminal as terminal_section
from pytest_cudafork.report import trace
from pytest_cudafork.settings import markers
from pytest_cudafork.settings.options import OPTIONS, Settings
from tests.support.sessions import TORCH

ALWAYS = {
    "cudafork-announcer",
    "cudafork-ask-plugins",
    "cudafork-gpus",
    "cudafork-gpus-refused",
    "cudafork-health-summary",
    "cudafork-in-place",
    "cudafork-isolation",
}


@pytest.fixture(autouse=True)
def no_options_of_the_session_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the arguments count."""
    for option in OPTIONS:
        monkeypatch.delenv(option.env, raising=False)


def registered(config: pytest.Config) -> set[str]:
    """Return the names of the plugin's parts in a session."""
    names = (name for name, _ in config.pluginmanager.list_name_plugin())
    return {name for name in names if name.startswith("cudafork-")}


def test_a_plain_session_has_no_check(pytester: pytest.Pytester) -> None:
    config = pytester.parseconfigure()
    assert registered(config) == ALWAYS
    assert config.stash[SESSION].watch is None
    assert plugin.pytest_report_header(config) is None


def test_a_checked_session_has_its_hooks_and_a_header(pytester: pytest.Pytester) -> None:
    config = pytester.parseconfigure("--cuda-fork-check", "--cuda-fork-device=none", "tests")
    checked = {"cudafork-check", "cudafork-baseline", "cudafork-late-errors"}
    assert registered(config) == ALWAYS | checked
    lines = plugin.pytest_report_header(config)
    assert lines is not None
    assert lines[0].startswith("cuda-fork: level fork, device none")
    assert str(config.option.cuda_fork_check) == "fork", "the path was left alone"


def test_every_option_and_marker_is_known_to_pytest(pytester: pytest.Pytester) -> None:
    config = pytester.parseconfigure()
    for option in OPTIONS:
        assert hasattr(config.option, option.name)
        config.getini(option.name)
    markers = "\n".join(config.getini("markers"))
    for name in ("spawn_only", "cuda_isolated", "cuda_fork_ok", "gpus", "graph_capture"):
        assert f"\n{name}(" in f"\n{markers}"


def test_an_audit_alone_isolates_nothing(pytester: pytest.Pytester) -> None:
    config = pytester.parseconfigure("--cuda-fork-imports=json", "--cuda-fork-isolate=fork")
    assert "cudafork-imports" in registered(config)


def test_the_process_of_an_isolated_test_audits_nothing(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_CUDAFORK_ISOLATED", "1")
    config = pytester.parseconfigure("--cuda-fork-imports=json")
    assert "cudafork-imports" not in registered(config)


def test_a_wrong_marker_fails_the_set_up_at_its_line(pytester: pytest.Pytester) -> None:
    (item,) = pytester.getitems(
        "import pytest\n@pytest.mark.cuda_isolated(method='x')\ndef test_a(): pass\n"
    )
    with pytest.raises(pytest.fail.Exception, match=r"\.py:2: test_a: @pytest\.mark\.cuda_isol"):
        plugin.pytest_runtest_setup(item)


def test_a_plain_test_is_set_up(pytester: pytest.Pytester) -> None:
    plugin.pytest_runtest_setup(pytester.getitem("def test_func(): pass"))


def test_a_test_made_for_a_backend_uses_it_though_it_asks_for_no_fixture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(markers, "says_of_captures", lambda item: False)
    call = SimpleNamespace(params={"graph_backend": "software"})
    item: Any = SimpleNamespace(callspec=call, fixturenames=["other"])
    plugin.pytest_itemcollected(item)
    plugin.pytest_itemcollected(item)
    assert item.fixturenames == ["other", "graph_backend"]
    plain: Any = SimpleNamespace(fixturenames=["other"])
    plugin.pytest_itemcollected(plain)
    assert plain.fixturenames == ["other"]


def test_tests_marked_for_graphs_run_once_with_each_backend(pytester: pytest.Pytester) -> None:
    text = "import pytest\n@pytest.mark.graph_capture(backends=['software'])\ndef test_a(): pass\n"
    items = pytester.getitems(text)
    assert [item.name for item in items] == ["test_a[software]"]
    lines = plugin.pytest_report_collectionfinish(items[0].config, items)
    assert lines is not None
    told = "software" if TORCH else "none (torch is not installed)"
    assert lines[0].startswith(f"graphs: {told}")
    assert plugin.pytest_report_collectionfinish(items[0].config, []) is None


def test_the_last_section_is_written_where_something_was_checked(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Any] = []
    monkeypatch.setattr(terminal_section, "write_summary", lambda *args: written.append(args))
    terminal: Any = SimpleNamespace(stats={})
    plugin.pytest_terminal_summary(terminal, pytester.parseconfigure())
    assert written == []
    config = pytester.parseconfigure("--cuda-fork-check=poison", "--cuda-fork-device=none")
    plugin.pytest_terminal_summary(terminal, config)
    ((shown, settings, _, check),) = written
    assert (shown, settings) == (terminal, config.stash[SESSION].settings)
    assert check is config.pluginmanager.get_plugin("cudafork-check")


def made_report(report: Any, **settings: Any) -> Any:
    """Return a report as it leaves the process in which it was made."""
    session = SimpleNamespace(settings=Settings(**settings))
    item: Any = SimpleNamespace(config=SimpleNamespace(stash={SESSION: session}), stash={})
    hook = plugin.pytest_runtest_makereport(item)
    next(hook)
    with pytest.raises(StopIteration) as ended:
        hook.send(report)
    assert ended.value.value is report
    return report


def test_a_report_carries_verdicts_and_for_a_trace_its_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(markers, "marks_of", lambda item: markers.Marks())
    verdicts.take_verdicts()
    empty = made_report(SimpleNamespace(user_properties=[]))
    assert vars(empty) == {"user_properties": []}
    verdicts.note_verdict("the pair", "software", CheckLog())
    report = made_report(SimpleNamespace(user_properties=[]), trace="/p/t.json")
    assert [each["title"] for each in getattr(report, CARRIED)] == ["the pair"]
    assert getattr(report, trace.CARRIED) == {"pid": os.getpid(), "ppid": os.getppid(), "gpus": ""}


def test_remarks_of_graph_checks_travel_with_the_report_to_the_terminal(
    pytester: pytest.Pytester,
) -> None:
    remarks.take()
    remarks.remark(["a note"], {})
    report = SimpleNamespace(nodeid="t.py::a", user_properties=[("other", 1)])
    made_report(report)
    assert report.user_properties == [("other", 1), (remarks.PROPERTY, "a note")]
    lines: list[str] = []
    terminal: Any = SimpleNamespace(stats={"passed": [report]}, write_line=lines.append)
    plugin.pytest_terminal_summary(terminal, pytester.parseconfigure())
    assert lines == ["graphs: t.py::a: a note"]


def test_what_a_session_is_meant_to_be_is_looked_after_where_it_is_said(
    pytester: pytest.Pytester,
) -> None:
    config = pytester.parseconfigure("--cuda-fork-expect-gpus=0")
    assert registered(config) == ALWAYS | {"cudafork-intent"}
