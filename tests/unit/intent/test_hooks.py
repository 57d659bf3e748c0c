"""Which reports are judged, failed and counted."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.baseline.file import BaselineError
from pytest_cudafork.check.failing import reasons_of
from pytest_cudafork.check.session import SESSION
from pytest_cudafork.intent import baseline, promise
from pytest_cudafork.intent.hooks import CARRIED, IntentHooks, reason_of
from pytest_cudafork.observe.base.ledger import Ledger
from pytest_cudafork.settings import Level
from pytest_cudafork.settings.options import Settings
from tests.unit.check.test_hooks import through

TEST = "test_it.py::test_a"


def hooks_of(
    folder: Path, known: str = "", watch: Any = None, *, debugs: bool = False, **settings: Any
) -> IntentHooks:
    """Return the hooks of a session in a folder; ``known`` is the text of its baseline."""
    if known:
        (folder / "known.toml").write_text(known)
        settings["baseline"] = str(folder / "known.toml")
    session = SimpleNamespace(
        settings=Settings(level=Level.FORK, **settings), watch=watch, isolated=False
    )
    option = SimpleNamespace(usepdb=debugs)
    config: Any = SimpleNamespace(stash={SESSION: session}, rootpath=folder, option=option)
    return IntentHooks(config)


def report(
    outcome: Any = "passed", when: Any = "call", reason: str = "", **about: Any
) -> pytest.TestReport:
    """Return a report of the test; ``reason`` is that of a skip."""
    longrepr = ("test_it.py", 3, f"Skipped: {reason}") if reason else None
    made = pytest.TestReport(TEST, ("test_it.py", 0, "test_a"), {}, outcome, longrepr, when)
    vars(made).update(about)
    return made


SPAWN = {"isolation": "spawn", "isolation_why": "not forkserver: 3 threads"}


def seen(hooks: IntentHooks, *reports: pytest.TestReport) -> list[tuple[str, str]]:
    """Log reports; return what was found."""
    for each in reports:
        hooks.pytest_runtest_logreport(each)
    return list(hooks.slips)


def test_a_test_that_ran_by_spawn_is_counted_and_failed_only_if_that_is_an_error(
    tmp_path: Path,
) -> None:
    for kinds, outcome in (((), "passed"), (("spawned",), "failed")):
        hooks = hooks_of(tmp_path, intent=kinds, expect_gpus=1)
        setup, call = report(when="setup", **SPAWN), report(**SPAWN)
        end = report(when="teardown", **SPAWN)
        assert seen(hooks, setup, call, end) == [("spawned", TEST)]
        assert [setup.outcome, call.outcome, end.outcome] == ["passed", outcome, "passed"]
        words = "wanted fork and ran spawn: not forkserver: 3 threads"
        assert end.user_properties == [(CARRIED, words)]  # JUnit takes those of the last report
        if kinds:
            assert str(call.longrepr).startswith(words)
    asked = report(isolation="spawn")  # it was asked for
    assert seen(hooks_of(tmp_path, expect_gpus=1), asked) == []


@pytest.mark.parametrize(
    ("made", "fails"),
    [
        (report("skipped", "setup", "CUDA is not available"), True),
        (report("skipped", "call", "CUDA is not available"), True),
        (report("skipped", "setup", "needs 3 GPUs"), False),
        (report("skipped", "setup", "too slow"), False),
        (report("skipped", "call", "CUDA is not available", wasxfail="reason: broken"), False),
        (report("failed", "call"), False),
    ],
)
def test_a_skip_for_want_of_a_promised_gpu_fails(
    tmp_path: Path, made: pytest.TestReport, fails: bool
) -> None:
    before = made.outcome
    hooks = hooks_of(tmp_path, expect_gpus=2, intent=("all",))
    assert seen(hooks, made) == ([("gpu-skipped", TEST)] if fails else [])
    assert made.outcome == ("failed" if fails else before)
    if fails:
        assert "It was skipped at test_it.py:3." in str(made.longrepr)


@pytest.mark.parametrize(("wanted", "found"), [("fork", [("spawned", TEST)]), ("spawn", [])])
def test_a_test_of_a_start_method_that_ran_otherwise_is_counted(
    wanted: str, found: list[tuple[str, str]], tmp_path: Path
) -> None:
    ran = [("cudafork_ran", "forkserver"), ("cudafork_ran_at", "e.py:3 by forkserver")]
    properties = [("cudafork_wanted", wanted), *ran]
    call = report(user_properties=list(properties))
    hooks = hooks_of(tmp_path, intent=("spawned",))
    assert seen(hooks, call) == found
    assert call.outcome == ("failed" if found else "passed")
    if found:
        [slip] = hooks.of("spawned")
        assert (
            slip.why
            == "it is marked start_methods('fork'), and ran forkserver: e.py:3 by forkserver"
        )


def test_a_file_that_is_skipped_as_a_whole_counts(tmp_path: Path) -> None:
    hooks = hooks_of(tmp_path, expect_gpus=1, intent=("all",))
    made = pytest.CollectReport("test_it.py", "skipped", ("t", 1, "Skipped: needs CUDA"), None)
    hooks.pytest_collectreport(made)
    assert made.outcome == "failed"
    assert list(hooks.slips) == [("gpu-skipped", "test_it.py")]
    slow = pytest.CollectReport("test_b.py", "skipped", ("t", 1, "Skipped: slow"), None)
    hooks.pytest_collectreport(slow)
    assert slow.outcome == "skipped"


def test_what_a_worker_has_judged_is_counted_and_not_judged_again(tmp_path: Path) -> None:
    made = report("skipped", "setup", "CUDA is not available")
    seen(hooks_of(tmp_path, expect_gpus=1), made)
    controller = hooks_of(tmp_path, expect_gpus=1, intent=("all",))
    assert seen(controller, made) == [("gpu-skipped", TEST)]
    assert made.outcome == "skipped"
    assert len(made.user_properties) == 1


@pytest.mark.parametrize(("gpus", "shown"), [(1, False), (0, False), (1, True)])
def test_a_touch_in_a_test_saw_a_gpu_where_there_is_one(
    tmp_path: Path, gpus: int, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promise, "gpus_of", lambda config: gpus)
    ledger = Ledger(str(tmp_path / "ledger"))
    ledger.create()
    watch = SimpleNamespace(observer=SimpleNamespace(ledger=ledger))
    hooks = hooks_of(tmp_path, watch=watch, expect_gpus=0, intent=("all",))
    names = ["phantom_cuda"] if shown else []
    item = SimpleNamespace(nodeid=TEST, stash={}, fixturenames=names)
    monkeypatch.setattr(
        "pytest_cudafork.intent.hooks.marks_of", lambda item: SimpleNamespace(gpus=None)
    )
    session: Any = SimpleNamespace(items=[item])
    hooks.pytest_collection_finish(session)
    ledger.append("touch", test="test_it.py::test_b (call)")
    assert seen(hooks, report()) == []
    ledger.append("touch", test=f"{TEST} (call)", pid=7)
    made = report()
    assert bool(seen(hooks, made)) == (made.outcome == "failed") == (gpus > 0 and not shown)


def finish(hooks: IntentHooks, status: int = 0) -> Any:
    """End the session."""
    session: Any = SimpleNamespace(exitstatus=status, testscollected=1, config=hooks._config)
    through(hooks.pytest_sessionfinish(session, status))
    return session


KNOWN = f'["tests: spawned"]\n"{TEST}" = "threads"\n"gone.py::test_x" = "threads"\n'


def test_the_baseline_accepts_tests_and_those_that_run_as_meant_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promise, "shortage", lambda config, expected: "")
    (tmp_path / "test_it.py").touch()
    hooks = hooks_of(tmp_path, KNOWN, intent=("all",), expect_gpus=1)
    call = report(**SPAWN)
    seen(hooks, call, report(when="teardown", **SPAWN))
    assert call.outcome == "passed"
    finish(hooks)
    assert hooks.gone == (("spawned", "gone.py::test_x"),)
    again = hooks_of(tmp_path, KNOWN, intent=("all",), expect_gpus=1, baseline_update="shrink")
    seen(again, report(), report(when="teardown"))
    assert finish(again).exitstatus == 0
    assert again.written == "0 tests now, 0 added, 2 removed"


XFAIL = {"wasxfail": "reason: broken"}


@pytest.mark.parametrize(
    ("kind", "reports", "gone"),
    [
        ("gpu-skipped", [report(when="setup"), report()], True),
        ("gpu-skipped", [report(when="setup"), report("failed")], True),
        ("gpu-skipped", [report(when="setup"), report("skipped", **XFAIL)], True),
        ("gpu-skipped", [report("failed", "setup")], False),
        ("gpu-skipped", [report("skipped", "setup", "too slow")], False),
        ("gpu-skipped", [report(when="setup"), report("skipped", "call", "too slow")], False),
        ("gpu-skipped", [report(when="setup")], False),
        ("gpu-seen", [report(when="setup"), report()], True),
        ("gpu-seen", [report(when="setup"), report("failed")], False),
        ("gpu-seen", [report("skipped", "setup", "too slow")], False),
        ("spawned", [report(when="setup"), report("failed")], True),
        ("spawned", [report("failed", "setup")], False),
    ],
)
def test_only_a_test_that_ran_can_be_gone_from_the_baseline(
    kind: str, reports: list[pytest.TestReport], gone: bool, tmp_path: Path
) -> None:
    (tmp_path / "test_it.py").touch()
    known = f'["tests: {kind}"]\n"{TEST}" = "it was so"\n'
    hooks = hooks_of(tmp_path, known, expect_gpus=1)
    seen(hooks, *reports, report(when="teardown"))
    assert hooks._is_past(kind, TEST) is gone


def test_where_no_test_is_isolated_none_runs_by_fork_again(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").touch()
    for settings, gone in (({}, True), ({"isolate": "none"}, False), ({"debugs": True}, False)):
        hooks = hooks_of(tmp_path, KNOWN, intent=("spawned",), **settings)
        seen(hooks, report(when="setup"), report(), report(when="teardown"))
        assert hooks._is_past("spawned", TEST) is gone


def test_a_promise_that_is_not_kept_fails_the_session_if_skips_are_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promise, "shortage", lambda config, expected: "2 expected")
    session = finish(hooks_of(tmp_path, expect_gpus=2, intent=("all",)))
    assert session.exitstatus == 1
    assert reasons_of(session.config) == ["2 expected"]
    assert finish(hooks_of(tmp_path, expect_gpus=2, intent=("spawned",))).exitstatus == 0


def test_a_baseline_that_cannot_be_read_or_written_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "no" / "known.toml")
    with pytest.raises(pytest.UsageError, match=r"--cuda-fork-baseline: .*: there is no folder"):
        hooks_of(tmp_path, baseline=path, baseline_update="all")
    with pytest.raises(pytest.UsageError, match=r"--cuda-fork-baseline: .*is not TOML"):
        hooks_of(tmp_path, "<<<<", intent=("all",))

    def refuse(*args: object, **kwargs: object) -> str:
        raise BaselineError("it is read-only")

    hooks = hooks_of(tmp_path, KNOWN, intent=("all",), baseline_update="all")
    monkeypatch.setattr(baseline, "update", refuse)
    assert finish(hooks).exitstatus == 1
    assert hooks.failure == "it is read-only"


def test_the_reason_of_a_skip_is_what_it_says() -> None:
    assert reason_of(("a.py", 3, "Skipped: no GPU")) == "no GPU"
    assert reason_of("no GPU") == "no GPU"
