"""What a session writes: each file, what cannot be written, and GitHub's part in GitHub alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.check.failing import fail_session
from pytest_cudafork.check.hooks import CheckHooks
from pytest_cudafork.hooks.calling import HookFailure
from pytest_cudafork.imports.audit.baseline import Baseline
from pytest_cudafork.imports.audit.confirm import CheckedRecord
from pytest_cudafork.imports.report.findings import Findings
from pytest_cudafork.imports.values.records import ImportRecord, ImportVerdict
from pytest_cudafork.report.outputs import Outputs
from pytest_cudafork.settings import environment
from pytest_cudafork.settings.import_settings import ImportSettings
from pytest_cudafork.settings.options import Settings
from tests.support.checked_sessions import LedgerSession, report
from tests.support.documents import read_document, read_sarif
from tests.support.trace_events import read_trace
from tests.unit.check.test_hooks import through
from tests.unit.report.test_terminal import Terminal


class _Terminal(Terminal):
    def ensure_newline(self) -> None:
        """Begin a line: there is no other."""


@pytest.fixture(autouse=True)
def phase(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the hooks of the check change nothing for the session around."""
    monkeypatch.setattr(environment, "put", lambda name, text: None)
    for name in (environment.GITHUB_ACTIONS, environment.GITHUB_STEP_SUMMARY):
        monkeypatch.delenv(name, raising=False)


def outputs_of(
    session: LedgerSession,
    *,
    checked: bool = True,
    failures: list[Any] | None = None,
    audit: Any = None,
) -> Outputs:
    """Return what writes for a session."""
    plugins = {"cudafork-imports": audit}
    if checked:
        plugins["cudafork-check"] = CheckHooks(session.state, session.observer)
    else:
        session.state.watch = None
    manager = SimpleNamespace(
        get_plugin=plugins.get, has_plugin=lambda name: name == "terminalreporter"
    )
    config: Any = SimpleNamespace(
        pluginmanager=manager,
        rootpath=session.root,
        stash=pytest.Stash(),
        invocation_params=SimpleNamespace(args=()),
    )
    announcer: Any = SimpleNamespace(failures=failures or [])
    return Outputs(config, session.state, announcer)


def session_of(outputs: Outputs, status: int = 0, **about: str) -> Any:
    """Return a session that is about to end."""
    given = {"shouldstop": False, "shouldfail": False, **about}
    return SimpleNamespace(exitstatus=status, config=outputs._config, **given)


def finish(outputs: Outputs, status: int = 0, **about: str) -> tuple[int, list[str]]:
    """End the session; return its exit status and the lines in the terminal."""
    session = session_of(outputs, status, **about)
    steps = outputs.pytest_sessionfinish(session)
    next(steps)
    with pytest.raises(StopIteration):
        steps.send(None)
    terminal: Any = _Terminal()
    outputs.pytest_terminal_summary(terminal)
    return int(session.exitstatus), [line for line, _ in terminal.lines]


def test_json_and_sarif_are_written_and_named(tmp_path: Path) -> None:
    files = Settings(json=str(tmp_path / "s.json"), sarif=str(tmp_path / "s.sarif"))
    session = LedgerSession(tmp_path, json=files.json, sarif=files.sarif)
    failure = HookFailure("pytest_cudafork_touch", "/p/conftest.py:3", "ValueError: oops")
    outputs = outputs_of(session, failures=[failure])
    session.touch(3)
    session.fork(5)
    outputs.pytest_collectreport(pytest.CollectReport("b.py", "failed", "no such module", []))
    outputs.pytest_collectreport(pytest.CollectReport("c.py", "skipped", ("c.py", 3, "why"), []))
    outputs.pytest_runtest_logreport(report("call"))
    status, lines = finish(outputs, 1)
    assert status == 1
    assert lines == [f"SARIF: {files.sarif}", f"JSON: {files.json}"]
    made = read_document(Path(files.json), "session")
    assert [each["error"] for each in made["check"]["findings"]] == ["CudaForkError"]
    assert made["hook_errors"][0]["words"] == "ValueError: oops"
    assert made["collection_errors"][0]["message"] == "no such module"
    assert made["collection_skips"][0]["message"] == "why"
    (result,) = read_sarif(json.loads(Path(files.sarif).read_text()))
    assert result["ruleId"] == "fork-while-initialized"


@pytest.mark.parametrize("checked", [True, False])
def test_a_trace_is_written_with_the_check_and_without(tmp_path: Path, *, checked: bool) -> None:
    session = LedgerSession(tmp_path, trace=str(tmp_path / "t.json"))
    outputs = outputs_of(session, checked=checked)
    session.touch(3)
    outputs.pytest_runtest_logreport(report("call"))
    assert finish(outputs) == (0, [f"trace: {tmp_path}/t.json"])
    categories = {event.get("cat") for event in read_trace(tmp_path / "t.json")}
    assert ("touch" in categories) == checked
    assert {"test", "session"} <= categories


def test_without_the_check_there_is_still_a_document(tmp_path: Path) -> None:
    session = LedgerSession(tmp_path, json=str(tmp_path / "s.json"))
    assert finish(outputs_of(session, checked=False))[0] == 0
    assert read_document(tmp_path / "s.json", "session")["check"] is None


def test_an_audit_of_the_session_is_in_both(tmp_path: Path) -> None:
    files = Settings(json=str(tmp_path / "s.json"), sarif=str(tmp_path / "s.sarif"))
    record = ImportRecord("pkg.a", "pkg", ImportVerdict.CRASHED, reason="exited with status 7")
    findings = Findings(
        (CheckedRecord(record),), {"pkg": []}, ImportSettings(), Baseline(), str(tmp_path)
    )
    session = LedgerSession(tmp_path, json=files.json, sarif=files.sarif)
    audit = SimpleNamespace(findings=findings)
    finish(outputs_of(session, checked=False, audit=audit))
    made = read_document(tmp_path / "s.json", "session")
    assert made["imports"]["modules"][0]["verdict"] == "crashed"
    (result,) = read_sarif(json.loads((tmp_path / "s.sarif").read_text()))
    assert result["ruleId"] == "import-broken"


def test_what_cannot_be_written_is_told_and_fails_the_session(tmp_path: Path) -> None:
    files = Settings(json=str(tmp_path / "no" / "s.json"), sarif=str(tmp_path / "s.sarif"))
    status, lines = finish(
        outputs_of(LedgerSession(tmp_path, json=files.json, sarif=files.sarif), checked=False)
    )
    assert status == pytest.ExitCode.TESTS_FAILED
    assert lines[0].startswith("SARIF: ")
    assert (
        lines[1]
        == f"ERROR: the JSON file {files.json} cannot be written: No such file or directory"
    )


@pytest.mark.parametrize("lost", ["sarif", "trace", "json"])
def test_a_file_that_cannot_be_written_is_told_in_all_others(tmp_path: Path, lost: str) -> None:
    files: dict[str, Any] = {kind: str(tmp_path / kind) for kind in ("sarif", "trace", "json")}
    files[lost] = str(tmp_path / "no" / "file")
    session = LedgerSession(tmp_path, **files)
    status, lines = finish(outputs_of(session, checked=False))
    assert status == pytest.ExitCode.TESTS_FAILED
    (error,) = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR")]
    if lost != "json":
        made = read_document(tmp_path / "json", "session")
        assert (made["exit_status"], made["good"], made["not_written"]) == (1, False, [error])
    if lost != "sarif":
        log = json.loads((tmp_path / "sarif").read_text())
        read_sarif(log)
        (run,) = log["runs"][0]["invocations"]
        assert run["executionSuccessful"] is False
        assert [each["message"]["text"] for each in run["toolExecutionNotifications"]] == [error]


@pytest.mark.parametrize("lost", ["trace", "html"])
def test_the_page_says_what_could_not_be_written_and_is_said_itself(
    tmp_path: Path, lost: str
) -> None:
    pytest.importorskip("jinja2", reason="makes the page")
    files: dict[str, Any] = {kind: str(tmp_path / kind) for kind in ("trace", "json", "html")}
    files[lost] = str(tmp_path / "no" / "file")
    status, lines = finish(outputs_of(LedgerSession(tmp_path, **files)))
    assert status == pytest.ExitCode.TESTS_FAILED
    (error,) = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR")]
    assert error.startswith(
        f"the {'HTML' if lost == 'html' else lost} file {tmp_path}/no/file cannot"
    )
    assert read_document(tmp_path / "json", "session")["not_written"] == [error]
    if lost != "html":
        page = (tmp_path / "html").read_text(encoding="utf-8")
        assert error in page
        assert '<p class="pill bad" id="verdict">Not good: exit status 1' in page


def test_the_document_so_far_has_what_was_seen(tmp_path: Path) -> None:
    session = LedgerSession(tmp_path)
    outputs = outputs_of(session)
    session.touch(3)
    outputs.pytest_runtest_logreport(report("call"))
    made = outputs.document_so_far(session_of(outputs, 1))
    assert [each["culprit"] for each in made["check"]["touches"]] == [f"{tmp_path}/test_a.py:3"]
    assert (made["exit_status"], made["counts"]) == (1, {"passed": 1})


@pytest.mark.parametrize("kinds", [("annotations",), ("summary",), ("annotations", "summary")])
def test_github_gets_what_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kinds: tuple[str, ...]
) -> None:
    monkeypatch.setenv(environment.GITHUB_ACTIONS, "true")
    monkeypatch.setenv(environment.GITHUB_STEP_SUMMARY, str(tmp_path / "summary"))
    monkeypatch.setenv(environment.GITHUB_WORKSPACE, str(tmp_path))
    session = LedgerSession(tmp_path, github=kinds)
    outputs = outputs_of(session)
    session.touch(3)
    session.fork(5)
    status, lines = finish(outputs)
    assert status == 0
    commands = [line for line in lines if line.startswith("::")]
    assert len(commands) == ("annotations" in kinds)
    for command in commands:
        assert command.startswith("::error file=test_a.py,line=3,title=")
    assert (tmp_path / "summary").exists() == ("summary" in kinds)
    if "summary" in kinds:
        assert "<summary>error: fork refused at" in (tmp_path / "summary").read_text()


def test_elsewhere_nothing_is_written_for_github(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environment.GITHUB_STEP_SUMMARY, str(tmp_path / "summary"))
    session = LedgerSession(tmp_path, github=("annotations", "summary"))
    outputs = outputs_of(session)
    session.fork(5)
    assert finish(outputs)[1] == []
    assert not (tmp_path / "summary").exists()


def test_the_fork_of_a_test_writes_nothing(tmp_path: Path) -> None:
    session = LedgerSession(tmp_path, json=str(tmp_path / "s.json"))
    outputs = outputs_of(session, checked=False)
    outputs._pid = 1
    assert finish(outputs) == (0, [])
    assert not (tmp_path / "s.json").exists()


@pytest.mark.parametrize(
    ("error", "status", "written"),
    [
        (ValueError("theirs"), 0, pytest.ExitCode.INTERNAL_ERROR),
        (ValueError("theirs"), 4, 4),
        (pytest.exit.Exception("enough", 7), 0, 7),
        (pytest.exit.Exception("enough"), 0, 0),
    ],
)
def test_a_plugin_that_raises_at_the_end_takes_no_report_away(
    tmp_path: Path, error: BaseException, status: int, written: int
) -> None:
    outputs = outputs_of(LedgerSession(tmp_path, json=str(tmp_path / "s.json")), checked=False)
    steps = outputs.pytest_sessionfinish(session_of(outputs, status))
    next(steps)
    with pytest.raises(type(error)):
        steps.throw(error)
    made = read_document(tmp_path / "s.json", "session")
    assert (made["exit_status"], made["good"]) == (written, written == 0)
    assert str(error) in made["stopped"]


def test_what_ended_the_session_is_in_its_document_and_in_the_summary_of_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environment.GITHUB_ACTIONS, "true")
    monkeypatch.setenv(environment.GITHUB_STEP_SUMMARY, str(tmp_path / "summary"))
    session = LedgerSession(tmp_path, json=str(tmp_path / "s.json"), github=("summary",))
    outputs = outputs_of(session, checked=False)
    outputs.pytest_collectreport(pytest.CollectReport("b.py", "failed", "no such module", []))
    outputs.pytest_collectreport(pytest.CollectReport("c.py", "skipped", ("c.py", 3, "why"), []))
    with pytest.raises(pytest.Session.Interrupted) as caught:
        raise pytest.Session.Interrupted("1 error during collection")
    outputs.pytest_keyboard_interrupt(caught)
    finish(outputs, 2)
    stopped = read_document(tmp_path / "s.json", "session")["stopped"]
    assert stopped.endswith("Interrupted: 1 error during collection")
    told = (tmp_path / "summary").read_text()
    assert f"skipped as a whole: 1, errors during collection: 1, stopped by {stopped}\n" in told
    assert "no tests" not in told


def test_why_a_session_fails_beside_its_tests_is_in_its_document_and_in_the_summary_of_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environment.GITHUB_ACTIONS, "true")
    monkeypatch.setenv(environment.GITHUB_STEP_SUMMARY, str(tmp_path / "summary"))
    session = LedgerSession(tmp_path, json=str(tmp_path / "s.json"), github=("summary",))
    outputs = outputs_of(session, checked=False)
    outputs.pytest_runtest_logreport(report("call"))
    fail_session(session_of(outputs), ["2 GPUs expected, and this session has 0"])
    finish(outputs, 1)
    made = read_document(tmp_path / "s.json", "session")
    assert made["failed_for"] == ["2 GPUs expected, and this session has 0"]
    told = (tmp_path / "summary").read_text()
    assert "1 passed; 2 GPUs expected, and this session has 0\n" in told


@pytest.mark.parametrize("by", ["shouldfail", "shouldstop"])
def test_a_session_that_was_to_stop_early_says_so_in_every_report(
    by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with ``-x``, which raises nothing that a plugin is told of."""
    monkeypatch.setenv(environment.GITHUB_ACTIONS, "true")
    monkeypatch.setenv(environment.GITHUB_STEP_SUMMARY, str(tmp_path / "summary"))
    files = Settings(json=str(tmp_path / "s.json"), sarif=str(tmp_path / "s.sarif"))
    session = LedgerSession(tmp_path, json=files.json, sarif=files.sarif, github=("summary",))
    finish(outputs_of(session, checked=False), 1, **{by: "stopping after 1 failures"})
    stopped = read_document(tmp_path / "s.json", "session")["stopped"]
    assert stopped == "stopping after 1 failures"
    assert f"\n{stopped}\n" in (tmp_path / "summary").read_text()
    (run,) = json.loads((tmp_path / "s.sarif").read_text())["runs"]
    assert run["invocations"][0]["executionSuccessful"] is False


def test_a_session_that_ended_early_is_no_whole_run_whatever_its_status(tmp_path: Path) -> None:
    files = Settings(json=str(tmp_path / "s.json"), sarif=str(tmp_path / "s.sarif"))
    outputs = outputs_of(LedgerSession(tmp_path, json=files.json, sarif=files.sarif), checked=False)
    with pytest.raises(pytest.exit.Exception) as caught:
        pytest.exit("enough", returncode=0)
    outputs.pytest_keyboard_interrupt(caught)
    finish(outputs)
    assert read_document(tmp_path / "s.json", "session")["stopped"].endswith("Exit: enough")
    (run,) = json.loads((tmp_path / "s.sarif").read_text())["runs"]
    assert run["invocations"][0]["executionSuccessful"] is False


def test_without_a_summary_what_matters_is_told_on_the_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(environment.GITHUB_ACTIONS, "true")
    files = Settings(json=str(tmp_path / "no" / "s.json"))
    session = LedgerSession(tmp_path, json=files.json, github=("annotations",))
    outputs = outputs_of(session)
    session.touch(3)
    session.fork(5)
    steps = outputs.pytest_sessionfinish(session_of(outputs))
    next(steps)
    with pytest.raises(StopIteration):
        steps.send(None)
    for _ in range(2):
        outputs.pytest_unconfigure()  # told once
    out, err = capsys.readouterr()
    assert (
        err == f"ERROR: the JSON file {files.json} cannot be written: No such file or directory\n"
    )
    assert out.count("\n::error file=test_a.py,line=3,title=") == 1
    assert out.count("::error") == 1


def test_a_quiet_session_does_not_name_what_was_written(tmp_path: Path) -> None:
    files = Settings(json=str(tmp_path / "s.json"), sarif=str(tmp_path / "no" / "s"))
    outputs = outputs_of(LedgerSession(tmp_path, json=files.json, sarif=files.sarif), checked=False)
    steps = outputs.pytest_sessionfinish(session_of(outputs))
    next(steps)
    with pytest.raises(StopIteration):
        steps.send(None)
    terminal: Any = _Terminal(verbosity=-1)
    outputs.pytest_terminal_summary(terminal)
    (line,) = [line for line, _ in terminal.lines]
    assert line.startswith("ERROR: the SARIF file "), "what is wrong is told all the same"


def test_an_internal_error_is_said_in_the_document(tmp_path: Path) -> None:
    outputs = outputs_of(LedgerSession(tmp_path, json=str(tmp_path / "s.json")), checked=False)
    with pytest.raises(ValueError, match="theirs") as caught:
        raise ValueError("theirs\nand more")
    outputs.pytest_internalerror(caught)
    finish(outputs, 3)
    made = read_document(tmp_path / "s.json", "session")
    assert (made["stopped"], made["exit_status"]) == ("ValueError: theirs", 3)


def test_what_comes_when_files_were_written_is_in_them_too(tmp_path: Path) -> None:
    names: dict[str, Any] = {name: str(tmp_path / name) for name in ("json", "sarif", "html")}
    session = LedgerSession(tmp_path, **names)
    outputs = outputs_of(session)
    outputs.close()  # a session that has not ended so far
    ended = session_of(outputs)
    through(outputs.pytest_sessionfinish(ended))
    assert read_document(tmp_path / "json", "session")["good"]
    Path(names["html"]).unlink()
    outputs.close()
    assert not Path(names["html"]).exists(), "nothing has come"
    session.fork()
    ended.exitstatus = 1
    outputs.close()
    document = read_document(tmp_path / "json", "session")
    assert (document["good"], document["exit_status"]) == (False, 1)
    assert len(document["check"]["findings"]) == 1
    assert len(read_sarif(json.loads((tmp_path / "sarif").read_text()))) == 1
    assert "test_a.py:5" in Path(names["html"]).read_text(encoding="utf-8")


def test_what_could_not_be_written_stays_told_when_files_are_written_once_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, gone = tmp_path / "folder", tmp_path / "gone"
    gone.mkdir()
    session = LedgerSession(tmp_path, json=str(gone / "json"), html=str(folder / "html"))
    outputs = outputs_of(session)
    ended = session_of(outputs)
    through(outputs.pytest_sessionfinish(ended))
    session.fork()
    folder.mkdir()
    shutil.rmtree(gone)
    ended.exitstatus = 0
    outputs.close()
    assert ended.exitstatus == 1
    assert "ERROR: the JSON file" in capsys.readouterr().err
    assert "the HTML file" in (folder / "html").read_text(encoding="utf-8")
