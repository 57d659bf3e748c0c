"""The hooks around a test with GPUs: what it sees, what is left behind, who is refused."""

from __future__ import annotations

import os
from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.check.session import SESSION, CudaForkSession
from pytest_cudafork.gpus import memory as memories
from pytest_cudafork.gpus import settle
from pytest_cudafork.gpus.inventory import Gpu
from pytest_cudafork.gpus.lease import REFUSAL, GpuLeases, RefusedTests
from pytest_cudafork.gpus.lending import Shortage
from pytest_cudafork.gpus.locks import WaitedTooLong
from pytest_cudafork.gpus.waiting import words_of_unknown
from pytest_cudafork.isolate.session import children
from pytest_cudafork.settings import environment
from pytest_cudafork.settings.markers import CHILD_ENV
from pytest_cudafork.settings.options import Settings

GPU = Gpu(1, "GPU-1")
VARIABLES = {environment.VISIBLE_GPUS: "1"}


class Lender:
    """Lends one GPU, or refuses."""

    def __init__(self) -> None:
        self.measures = True
        self.error: Exception | None = None
        self.seen: tuple[Gpu, ...] | None = None
        self.noted: list[tuple[Gpu, ...]] = []
        self.leases: list[Any] = []

    def lend(self, test: str, wish: Any) -> Any:
        """Lend it."""
        if self.error is not None:
            raise self.error
        lease = SimpleNamespace(
            gpus=(GPU,), environment=dict(VARIABLES), mark="mark", before=None, ended=0, alone=True
        )
        lease.end = lambda: setattr(lease, "ended", lease.ended + 1)
        self.leases.append(lease)
        return lease

    def seen_here(self) -> tuple[Gpu, ...] | None:
        """What CUDA shows in this process."""
        return self.seen

    def note_seen(self, gpus: tuple[Gpu, ...]) -> None:
        """Note what it has shown."""
        self.noted.append(gpus)


@pytest.fixture
def lender(monkeypatch: pytest.MonkeyPatch) -> Lender:
    """The one who lends; no process is marked, no memory is looked at."""
    made = Lender()
    monkeypatch.setattr("pytest_cudafork.gpus.lease.Lender", lambda config, choice: made)
    monkeypatch.setattr(memories, "put_mark", lambda mark, test: mark)
    monkeypatch.setattr(memories, "left_behind", lambda *args: [])
    monkeypatch.setenv(environment.VISIBLE_GPUS, "all")
    return made


def items_of(pytester: pytest.Pytester, text: str) -> list[pytest.Item]:
    """Return the tests of a module, of a session that this plugin knows."""
    items = pytester.getitems(f"import pytest\n{text}")
    for item in items:
        item.config.stash.setdefault(SESSION, CudaForkSession(Settings()))
    return items


def leases_of(item: pytest.Item, *, isolated: bool = False) -> GpuLeases:
    """Return the hooks for the session of a test."""
    item.config.stash[SESSION].isolated = isolated
    return GpuLeases(item.config, None)


def around(leases: GpuLeases, item: pytest.Item, nextitem: pytest.Item | None = None) -> Any:
    """Begin the protocol of a test; the result ends it."""
    hook: Generator[None, Any, Any] = leases.pytest_runtest_protocol(item, nextitem)
    next(hook)

    def end() -> object:
        try:
            hook.send("result")
        except StopIteration as stop:
            return stop.value
        raise AssertionError("it goes on")

    return end


ONE = "@pytest.mark.gpus(1)\ndef test_a(): pass\n"


def test_a_child_finds_what_to_see_as_long_as_its_test_lasts(
    pytester: pytest.Pytester, lender: Lender
) -> None:
    (item,) = items_of(pytester, ONE)
    end = around(leases_of(item), item)
    assert item.stash[CHILD_ENV] == VARIABLES
    assert end() == "result"
    assert item.stash[CHILD_ENV] == {}
    assert lender.leases[0].ended == 1
    assert environment.value(environment.VISIBLE_GPUS) == "all"


def test_a_test_without_the_marker_gets_none(pytester: pytest.Pytester, lender: Lender) -> None:
    (item,) = items_of(pytester, "def test_a(): pass\n")
    assert around(leases_of(item), item)() == "result"
    assert lender.leases == []


@pytest.mark.parametrize("mark", ["skip", "skipif(True, reason='so')"])
def test_a_skipped_test_waits_for_none(
    pytester: pytest.Pytester, lender: Lender, mark: str
) -> None:
    (item,) = items_of(pytester, f"@pytest.mark.{mark}\n{ONE}")
    around(leases_of(item), item)()
    assert lender.leases == []


def test_a_group_keeps_its_gpus_to_its_last_test(pytester: pytest.Pytester, lender: Lender) -> None:
    group = "@pytest.mark.cuda_isolated(scope='module')\n@pytest.mark.gpus(1)\n"
    text = f"{group}def test_a(): pass\n{group}def test_b(): pass\ndef test_c(): pass\n"
    first, second, other = items_of(pytester, text)
    leases = leases_of(first)
    around(leases, first, second)()
    (lease,) = lender.leases
    assert lease.ended == 0
    around(leases, second, other)()
    assert (len(lender.leases), lease.ended) == (1, 1)


def test_a_group_that_is_cut_short_gives_back(pytester: pytest.Pytester, lender: Lender) -> None:
    group = "@pytest.mark.cuda_isolated(scope='module')\n@pytest.mark.gpus(1)\n"
    text = f"{group}def test_a(): pass\n{group}def test_b(): pass\ndef test_c(): pass\n"
    first, second, other = items_of(pytester, text)
    leases = leases_of(first)
    around(leases, first, second)()
    around(leases, other)()  # deselected by a plugin, say
    assert lender.leases[0].ended == 1
    around(leases, first, second)()
    leases.pytest_sessionfinish()
    assert lender.leases[1].ended == 1


def test_in_this_process_the_environment_is_changed_and_restored(
    pytester: pytest.Pytester, lender: Lender
) -> None:
    (item,) = items_of(pytester, ONE)
    leases = leases_of(item)
    end = around(leases, item)
    leases.pytest_runtest_setup(item)
    leases.pytest_runtest_setup(item)  # run again by another plugin
    assert environment.value(environment.VISIBLE_GPUS) == "1"
    end()
    assert environment.value(environment.VISIBLE_GPUS) == "all"
    assert lender.noted == [(GPU,)]


def test_a_process_that_shows_other_gpus_for_good_fails_the_test(
    pytester: pytest.Pytester, lender: Lender
) -> None:
    (item,) = items_of(pytester, ONE)
    lender.seen = (Gpu(0, "GPU-0"),)
    leases = leases_of(item)
    end = around(leases, item)
    with pytest.raises(pytest.fail.Exception, match="shows GPUs 0 for good; the test may see 1"):
        leases.pytest_runtest_setup(item)
    end()


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Shortage("needs 2 GPUs"), pytest.skip.Exception),
        (WaitedTooLong("others have them"), pytest.fail.Exception),
    ],
)
def test_a_test_without_gpus_is_told_in_its_set_up(
    pytester: pytest.Pytester,
    lender: Lender,
    error: Exception,
    outcome: type[BaseException],
) -> None:
    (item,) = items_of(pytester, ONE)
    lender.error = error
    leases = leases_of(item)
    end = around(leases, item)
    assert item.stash[REFUSAL].text == str(error)
    with pytest.raises(outcome, match=str(error)):
        leases.pytest_runtest_setup(item)
    end()
    assert REFUSAL not in item.stash


def test_a_refused_test_runs_here_though_it_would_be_isolated(
    pytester: pytest.Pytester, lender: Lender
) -> None:
    (item,) = items_of(pytester, ONE)
    assert RefusedTests().pytest_runtest_protocol(item, None) is None
    lender.error = Shortage("needs 2 GPUs")
    end = around(leases_of(item), item)
    assert RefusedTests().pytest_runtest_protocol(item, None)
    end()


def test_the_process_of_an_isolated_test_is_marked(
    pytester: pytest.Pytester, lender: Lender, monkeypatch: pytest.MonkeyPatch
) -> None:
    (item,) = items_of(pytester, ONE)
    marks: list[tuple[str, str]] = []
    monkeypatch.setattr(memories, "put_mark", lambda *args: marks.append(args))
    monkeypatch.setenv(environment.GPU_LOCKS, "/locks/the-mark")
    leases = leases_of(item, isolated=True)
    end = around(leases, item)
    leases.pytest_runtest_setup(item)
    end()
    assert (marks, lender.leases) == ([("the-mark", item.nodeid)], [])


def test_a_forked_child_is_marked_and_ends_no_lease(
    pytester: pytest.Pytester, lender: Lender, monkeypatch: pytest.MonkeyPatch
) -> None:
    (item,) = items_of(pytester, ONE)
    marks: list[tuple[str, str]] = []
    monkeypatch.setattr(memories, "put_mark", lambda *args: marks.append(args))
    leases = leases_of(item)
    end = around(leases, item)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        leases.pytest_runtest_setup(item)
        leases.pytest_sessionfinish()
    assert (marks, lender.leases[0].ended) == ([("mark", item.nodeid)], 0)
    end()


class Told:
    """Notes warnings and reports."""

    def __init__(self) -> None:
        self.warnings: list[tuple[str, str]] = []
        self.reports: list[pytest.TestReport] = []

    def pytest_warning_recorded(self, warning_message: Any, nodeid: str) -> None:
        """Note a warning and its test."""
        self.warnings.append((nodeid, str(warning_message.message)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a report."""
        self.reports.append(report)


@pytest.mark.parametrize("is_error", [False, True])
def test_memory_that_is_left_behind_is_a_warning_of_the_test(
    pytester: pytest.Pytester, lender: Lender, monkeypatch: pytest.MonkeyPatch, is_error: bool
) -> None:
    action = "error" if is_error else "always"
    (item,) = items_of(pytester, f"@pytest.mark.filterwarnings('{action}')\n{ONE}")
    told, ended = Told(), []
    item.config.pluginmanager.register(told)
    monkeypatch.setattr(memories, "left_behind", lambda *args: ["something"])
    monkeypatch.setattr(memories, "describe", lambda found: "memory was left behind")
    ends = SimpleNamespace(end_leftovers=lambda: ended.append(True))
    monkeypatch.setattr(children, "children_of", lambda config: ends)
    end = around(leases_of(item), item)
    lender.leases[0].before = "measured"
    end()
    assert ended == [True]
    if is_error:
        (report,) = told.reports
        assert (report.when, report.outcome) == ("teardown", "failed")
        assert "memory was left behind" in report.longreprtext
    else:
        assert told.warnings == [(item.nodeid, "memory was left behind")]


class Settling:
    """Says why a test cannot run, if it is told to."""

    def __init__(self) -> None:
        self.gpus = (GPU,)
        self.unknown = ["GPU 1: NVML: no permission"]
        self.text = ""
        self.asked: list[tuple[Gpu, ...]] = []

    def why_not(self, gpus: tuple[Gpu, ...]) -> str:
        """Say so."""
        self.asked.append(gpus)
        return self.text

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("text", [ONE, "def test_a(): pass\n"], ids=["gpus", "none"])
def test_a_test_waits_for_memory_and_is_not_run_on_what_is_not_back(
    pytester: pytest.Pytester, lender: Lender, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    (item,) = items_of(pytester, f"@pytest.mark.filterwarnings('always')\n{text}")
    item.config.pluginmanager.register(told := Told())
    monkeypatch.delenv(environment.XDIST_WORKERS, raising=False)
    ended: list[bool] = []
    ends = SimpleNamespace(end_leftovers=lambda: ended.append(True))
    monkeypatch.setattr(children, "children_of", lambda config: ends)
    leases = leases_of(item)
    leases._settling = settling = Settling()  # type: ignore[assignment]
    around(leases, item)()
    assert [text for _, text in told.warnings] == [words_of_unknown(["GPU 1: NVML: no permission"])]
    settling.text = "somebody holds it"
    end = around(leases, item)
    assert item.stash[REFUSAL] == ("fail", "somebody holds it")
    assert all(one.ended for one in lender.leases)
    with pytest.raises(pytest.fail.Exception, match="somebody holds it"):
        leases.pytest_runtest_setup(item)
    end()
    assert REFUSAL not in item.stash
    assert (ended, settling.asked) == ([True, True], [(GPU,), (GPU,)])
    monkeypatch.setenv(environment.XDIST_WORKERS, "2")
    end = around(leases, item)
    assert (REFUSAL in item.stash) == (text is ONE), "a worker cannot know what others use"
    end()
    leases.pytest_sessionfinish()


def test_the_session_measures_at_its_start_if_tests_are_to_settle(
    pytester: pytest.Pytester, lender: Lender, monkeypatch: pytest.MonkeyPatch
) -> None:
    (item,) = items_of(pytester, ONE)
    made: list[Any] = []
    monkeypatch.setattr(settle, "Settling", lambda *args: made.append(args))
    leases = leases_of(item)
    leases.pytest_sessionstart()
    assert made == []
    item.config.stash[SESSION] = CudaForkSession(Settings(settle=5))
    lender.inventory = lambda: SimpleNamespace(gpus=(GPU,))  # type: ignore[attr-defined]
    leases_of(item).pytest_sessionstart()
    assert made == [((GPU,), 5)]
