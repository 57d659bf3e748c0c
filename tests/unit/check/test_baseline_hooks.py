"""The baseline's hooks: which places were passed, and what becomes of the file at the end."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_cudafork.baseline.culprit import Culprit
from pytest_cudafork.baseline.entries import Accepted, CheckBaseline
from pytest_cudafork.check.accepted import Acceptance, Terms
from pytest_cudafork.check.baseline_hooks import BaselineHooks, PassedPlaces
from pytest_cudafork.check.findings import Finding
from pytest_cudafork.errors import CudaForkError
from pytest_cudafork.settings import Level
from pytest_cudafork.settings.options import Settings
from tests.unit.check.test_accepted import Notes
from tests.unit.check.test_hooks import through

TEST = "test_it.py::test_a"
GONE = Accepted("fork", Culprit("lib.py", "f", "probe()"))


class Observer(Notes):
    """A ledger as the observer writes it, with what only these hooks write."""

    def note_ran(self, place: str) -> None:
        """Write a place."""
        self.ledger.append("ran", place=place)

    def note_deselected(self, count: int) -> None:
        """Write a number of tests."""
        self.ledger.append("deselected", count=count)

    def note_end(self, **fields: object) -> None:
        """Write the end."""
        self.ledger.append("end", **fields)


class Made:
    """The hooks of a session in a folder, with what they use."""

    def __init__(self, folder: Path, how: str = "", places: tuple[str, ...] = (TEST,)) -> None:
        self.path = folder / "known.toml"
        entries = {GONE._replace(culprit=Culprit("lib.py", "f", p)): p for p in places}
        CheckBaseline(entries).write(self.path)
        self.observer = Observer(folder / "ledger")
        self.plugins: dict[str, Any] = {}
        acceptance = Acceptance(self.observer)
        acceptance.begin(Terms(str(folder), dict(entries)))
        (folder / "lib.py").write_text(" ".join(places))  # so that nothing is missing
        self.config = SimpleNamespace(
            stash=pytest.Stash(),
            rootpath=folder,
            args=["tests"],
            args_source=1,
            ArgsSource=SimpleNamespace(ARGS=1),
            pluginmanager=SimpleNamespace(get_plugin=self.plugins.get),
        )
        settings = Settings(level=Level.FORK, baseline=str(self.path), baseline_update=how)
        session: Any = SimpleNamespace(settings=settings, joined=False, reports_home=False)
        watch: Any = SimpleNamespace(observer=self.observer, acceptance=acceptance)
        check: Any = SimpleNamespace(unreported=lambda records: [])
        config: Any = self.config
        self.places = PassedPlaces(watch)
        self.hooks = BaselineHooks(config, session, watch, check)

    def end(self, status: int = 0, shouldstop: str = "") -> Any:
        """End the session, and return it."""
        session: Any = SimpleNamespace(
            shouldstop=shouldstop, shouldfail="", exitstatus=status, config=self.config
        )
        self.hooks.pytest_sessionfinish(session, status)
        return session

    def kinds(self, kind: str) -> list[dict[str, Any]]:
        """Return the records of a kind."""
        return [record for record in self.observer.records() if record["k"] == kind]


def run(places: PassedPlaces, work: Any = lambda: None, nodeid: str = TEST) -> None:
    """Run a test through the hooks."""
    item: Any = SimpleNamespace(nodeid=nodeid)
    with contextlib.suppress(ZeroDivisionError):
        through(places.pytest_runtest_call(item), work)
    through(places.pytest_runtest_teardown(item))


def _same(report: Any) -> Any:
    return report


def test_places_that_were_passed_are_noted_and_no_others(tmp_path: Path) -> None:
    made = Made(tmp_path, places=(TEST, "collect test_it.py", "start"))
    made.places.pytest_sessionstart()
    for outcome in (False, True):
        node: Any = SimpleNamespace(nodeid="test_it.py")
        report: Any = SimpleNamespace(passed=outcome)
        through(made.places.pytest_make_collect_report(node), functools.partial(_same, report))
    run(made.places, lambda: 1 / 0)  # a test that fails may not have come to the line
    run(made.places, nodeid="test_it.py::test_b")
    assert [r["place"] for r in made.kinds("ran")] == ["start", "collect test_it.py"]
    run(made.places)
    assert made.kinds("ran")[-1]["place"] == TEST


@pytest.mark.parametrize(
    ("spoil", "partial"),
    [
        (lambda made: None, ""),
        (lambda made: made.hooks.pytest_deselected([1, 2]), "tests were deselected"),
        (lambda made: made.config.args.append("a.py::test_b"), "it ran a.py::test_b alone"),
        (lambda made: made.config.args.append("test_a.py"), "it ran test_a.py alone"),
    ],
)
def test_only_a_whole_session_removes_what_it_did_not_see(
    tmp_path: Path, spoil: Any, partial: str
) -> None:
    made = Made(tmp_path, "shrink")
    made.hooks.pytest_deselected([])
    run(made.places)
    spoil(made)
    made.end()
    (end,) = made.kinds("end")
    assert end["partial"] == partial
    assert (made.hooks.gone == ()) == bool(partial)
    assert (len(CheckBaseline.read(made.path, "").entries) == 1) == bool(partial)
    assert len(end["result"]["quiet"]) == 1  # for merge, which may know the other parts


@pytest.mark.parametrize(("status", "shouldstop"), [(2, ""), (3, ""), (1, "after 1 failure")])
def test_a_session_that_was_stopped_writes_nothing_and_says_so(
    tmp_path: Path, status: int, shouldstop: str
) -> None:
    made = Made(tmp_path, "all")
    run(made.places)
    made.end(status, shouldstop)
    assert "the baseline was not changed: " in made.hooks.failure
    assert len(CheckBaseline.read(made.path, "").entries) == 1
    assert made.kinds("end")[0]["stopped"]


def test_pytest_exit_is_an_early_end_whatever_status_it_gives(tmp_path: Path) -> None:
    made = Made(tmp_path, "shrink")
    with pytest.raises(pytest.exit.Exception) as caught:
        pytest.exit("enough\nof it", returncode=0)
    made.hooks.pytest_keyboard_interrupt(caught)
    made.end(0)
    assert made.hooks.failure.endswith("Exit: enough")
    assert made.kinds("end")[0]["stopped"].endswith("Exit: enough")


def test_a_session_whose_workers_all_died_has_not_come_to_its_end(tmp_path: Path) -> None:
    made = Made(tmp_path, "shrink")
    why = "worker gw0 crashed and worker restarting disabled"
    made.plugins["dsession"] = SimpleNamespace(_summary_report=why)
    made.end(1)
    assert made.hooks.failure == f"the baseline was not changed: {why}"
    assert made.kinds("end")[0]["stopped"] == why


def test_what_another_session_has_added_meanwhile_stays(tmp_path: Path) -> None:
    made = Made(tmp_path, "shrink")
    run(made.places)
    both = CheckBaseline.read(made.path, "")
    added = Accepted("touch", Culprit("lib.py", "g", TEST))
    CheckBaseline({**both.entries, added: "start"}).write(made.path)
    assert made.end().exitstatus == 0
    assert list(CheckBaseline.read(made.path, "").entries) == [added]
    assert made.hooks.written == "1 now, 0 added, 1 removed"


def test_a_file_that_cannot_be_read_any_more_fails_the_session_and_stays(tmp_path: Path) -> None:
    made = Made(tmp_path, "all")
    made.path.write_text("<<<<<<< HEAD\n")
    session = made.end()
    assert session.exitstatus == pytest.ExitCode.TESTS_FAILED
    assert "is not TOML" in made.hooks.failure
    assert made.path.read_text() == "<<<<<<< HEAD\n"


def test_a_file_that_is_gone_is_written_again(tmp_path: Path) -> None:
    made = Made(tmp_path, "all")
    made.path.unlink()
    made.end()
    assert len(CheckBaseline.read(made.path, "").entries) == 1


def test_a_worker_judges_nothing(tmp_path: Path) -> None:
    made = Made(tmp_path, "all")
    made.hooks._joined = True
    made.end()
    assert made.kinds("end") == []


@pytest.mark.parametrize("late", [True, False])
def test_what_comes_after_the_end_is_written_in_another_one(late: bool, tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.hooks._settings = Settings(level=Level.FORK, ledger="kept")
    made.hooks.close()  # as after an error in the configuration
    session = made.end()
    if late:
        fork = {"k": "fork", "id": "f", "pid": 1, "owner": "1", "stack": []}
        unreported = [Finding(fork, CudaForkError)]
        made.hooks._check = cast("Any", SimpleNamespace(unreported=lambda records: unreported))
        session.exitstatus = 1
    made.hooks.close()
    made.hooks.close()
    ends = made.kinds("end")
    assert [(end["untold"], end["status"]) for end in ends] == [(0, 0), (1, 1)][: 1 + late]
    assert [end["result"]["unknown"] for end in ends] == [0, 1][: 1 + late]
