"""Costs are gathered from reports, written, shown, and used to pack the next session."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.check.session import SESSION, CudaForkSession
from pytest_cudafork.gpus import costs as costs_module
from pytest_cudafork.gpus.costs import ChildCosts, Costs, Packing, begin, summary_lines
from pytest_cudafork.gpus.inventory import Gpu, phantom_machine, take_inventory
from pytest_cudafork.gpus.profile import Cost, read_profile, write_profile
from pytest_cudafork.settings.gpu_requests import GpuChoice, GpuWish
from pytest_cudafork.settings.markers import WATCHER, marks_of
from pytest_cudafork.settings.options import Settings

GIB = 1 << 30
GPU = Gpu(0, "GPU-0a", "NVIDIA H200", memory=140 * GIB)
MODELS = {GPU.name: GPU.memory}
LENDER: Any = SimpleNamespace(
    measures=False,
    inventory=lambda: SimpleNamespace(gpus=(GPU,), machine=SimpleNamespace(gpus=(GPU,))),
)


def report(when: str, outcome: str = "passed", **about: Any) -> pytest.TestReport:
    """Return the report of one phase, which took a second."""
    made = pytest.TestReport("test_a.py::a", ("", 0, ""), {}, outcome, None, when, duration=1.0)  # type: ignore[arg-type]
    vars(made).update(about)
    return made


def _session() -> Any:
    """Return a session at its end, of which nothing failed."""
    config = SimpleNamespace(stash=pytest.Stash())
    return SimpleNamespace(exitstatus=pytest.ExitCode.OK, config=config)


def run(costs: Costs, item: pytest.Item, *reports: pytest.TestReport) -> None:
    """Let a test run, of which the reports come."""
    hook = costs.pytest_runtest_protocol(item)
    next(hook)
    for one in reports:
        item.stash[WATCHER](os.getpid(), b"cookie")
        costs.pytest_runtest_logreport(one)
    with pytest.raises(StopIteration):
        hook.send(None)
    assert WATCHER not in item.stash


def test_a_test_that_passed_is_written_and_others_are_kept(
    pytester: pytest.Pytester, tmp_path: Path
) -> None:
    (item,) = pytester.getitems("def test_a(): pass")
    path = str(tmp_path / "profile.json")
    earlier = {"test_b.py::b": Cost(7.0), "test_a.py::a": Cost(8.0)}
    costs = Costs(item.config, path, LENDER, earlier)
    phases = [report("setup"), report("call", isolation="fork")]
    run(costs, item, *phases, report("teardown", isolation="fork"))
    costs.pytest_sessionfinish(_session())
    found = read_profile(path, MODELS)
    assert found["test_b.py::b"] == Cost(7.0)
    assert found["test_a.py::a"].seconds == 3.0
    assert found["test_a.py::a"].ram > 1 << 20
    for outcome in ("failed", "skipped"):
        costs = Costs(item.config, path, LENDER, earlier)
        run(costs, item, report("setup"), report("call", outcome), report("teardown"))
        costs.pytest_sessionfinish(_session())
        assert read_profile(path, MODELS) == earlier


def test_a_test_that_passes_after_its_process_has_died_is_written(
    pytester: pytest.Pytester, tmp_path: Path
) -> None:
    (item,) = pytester.getitems("def test_a(): pass")
    path = str(tmp_path / "profile.json")
    costs = Costs(item.config, path, LENDER, {})
    died = [report("setup"), report("call", "rerun")]
    run(costs, item, *died, report("setup"), report("call"), report("teardown"))
    costs.pytest_sessionfinish(_session())
    assert read_profile(path, MODELS)["test_a.py::a"].seconds == 3.0


@pytest.mark.parametrize(
    ("outcomes", "seconds"),
    [(["passed", "passed"], {3.0}), (["passed", "skipped"], {3.0}), (["passed", "failed"], set())],
)
def test_the_time_of_a_subtest_is_not_counted_twice(
    outcomes: list[str], seconds: set[float], pytester: pytest.Pytester, tmp_path: Path
) -> None:
    (item,) = pytester.getitems("def test_a(): pass")
    path = str(tmp_path / "profile.json")
    costs = Costs(item.config, path, LENDER, {})
    parts = [report("call", outcome) for outcome in outcomes]
    for part in parts:
        part.__class__ = type("SubtestReport", (pytest.TestReport,), {})
    run(costs, item, report("setup"), *parts, report("call"), report("teardown"))
    costs.pytest_sessionfinish(_session())
    assert {cost.seconds for cost in read_profile(path, MODELS).values()} == seconds


def test_sessions_at_the_same_time_keep_what_each_other_has_written(
    pytester: pytest.Pytester, tmp_path: Path
) -> None:
    (item,) = pytester.getitems("def test_a(): pass")
    (tmp_path / "elsewhere").mkdir()
    path = tmp_path / "profile.json"
    path.symlink_to(tmp_path / "elsewhere" / "profile.json")
    ours, theirs = (Costs(item.config, str(path), LENDER, {}) for _ in range(2))
    theirs._new["test_b.py::b"] = Cost(7.0)
    theirs.pytest_sessionfinish(_session())
    run(ours, item, report("setup"), report("call"), report("teardown"))
    ours.pytest_sessionfinish(_session())
    assert set(read_profile(str(path), MODELS)) == {"test_a.py::a", "test_b.py::b"}
    assert path.is_symlink()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            '{"pytest_cudafork_profile": 1, "gpus": {"NVIDIA L4": 9}, "tests": {}}',
            "was recorded on another machine",
        ),
        ("torn {", "is no profile, or torn"),
    ],
)
def test_a_file_that_became_another_meanwhile_is_left_alone(
    text: str, words: str, pytester: pytest.Pytester, tmp_path: Path
) -> None:
    (item,) = pytester.getitems("def test_a(): pass")
    path = tmp_path / "profile.json"
    costs = Costs(item.config, str(path), LENDER, {})
    run(costs, item, report("setup"), report("call"), report("teardown"))
    path.write_text(text)
    costs.pytest_sessionfinish(session := _session())
    assert path.read_text() == text
    assert session.exitstatus == pytest.ExitCode.TESTS_FAILED
    assert words in costs._trouble


def test_the_controller_gathers_what_workers_have_measured(
    pytester: pytest.Pytester, tmp_path: Path
) -> None:
    config: Any = pytester.getitem("def test_func(): pass").config
    costs = Costs(config, str(tmp_path / "profile.json"), LENDER, {})
    costs.pytest_runtest_logreport(report("call"))
    costs.pytest_runtest_logreport(report("teardown", _cudafork_cost=[2, 5 * GIB, 6]))
    written: list[str] = []
    terminal: Any = SimpleNamespace(
        section=written.append, write_line=lambda line, **about: written.append(line)
    )
    costs.pytest_terminal_summary(terminal)
    assert "     5 GiB  test_a.py::a on each of 2 GPUs" in "\n".join(written)
    assert written[-1].endswith("profile.json (1 test measured)")
    costs._path = str(tmp_path)
    session = _session()
    costs.pytest_sessionfinish(session)
    assert session.exitstatus == pytest.ExitCode.TESTS_FAILED
    costs.pytest_terminal_summary(terminal)
    assert "ERROR: the profile could not be written" in written[-1]


def test_what_torch_has_counted_is_in_the_report_of_a_child(
    monkeypatch: pytest.MonkeyPatch, pytester: pytest.Pytester, tmp_path: Path
) -> None:
    monkeypatch.setattr(costs_module, "reserved_by_torch", lambda: [9 * GIB])
    hook = ChildCosts().pytest_runtest_makereport()
    next(hook)
    with pytest.raises(StopIteration) as caught:
        hook.send(last := report("teardown", isolation="spawn"))
    assert caught.value.value is last
    (item,) = pytester.getitems("def test_a(): pass")
    lender = SimpleNamespace(measures=True, inventory=LENDER.inventory)
    monkeypatch.setattr("pytest_cudafork.gpus.memory.look", lambda gpus: {})
    monkeypatch.setattr("pytest_cudafork.gpus.usage.Usage.look", lambda *args: None)
    path = str(tmp_path / "profile.json")
    costs = Costs(item.config, path, lender, {})  # type: ignore[arg-type]
    run(costs, item, report("setup"), report("call"), last)
    costs.pytest_sessionfinish(_session())
    assert read_profile(path, MODELS)["test_a.py::a"][1:3] == (1, 9 * GIB)


def test_the_longest_and_the_largest_are_shown() -> None:
    many = {f"t{number:02}": Cost(number, 1, number * GIB, number << 20) for number in range(12)}
    lines = summary_lines(many)
    assert lines[0] == "longest:"
    assert lines[1].split() == ["11.00", "s", "t11"]
    assert lines[10].split() == ["2.00", "s", "t02"]
    assert lines[11] == "largest in RAM:"
    assert lines[12].split() == ["11", "MiB", "t11"]
    assert lines[22] == "largest in GPU memory:"
    assert len(lines) == 33
    assert summary_lines({"a": Cost(1.0)})[1:] == ["      1.00 s  a"]


TESTS = """
import pytest

def test_plain(): pass

@pytest.mark.gpus(1)
def test_short(): pass

@pytest.mark.gpus(2)
def test_long(): pass

@pytest.mark.gpus(1, memory="3GiB")
def test_says(): pass

@pytest.mark.gpus(1)
def test_new(): pass

@pytest.mark.gpus(1, share=True)
def test_shares(): pass

@pytest.mark.gpus(1)
@pytest.mark.cuda_isolated(scope="module")
def test_of_group(): pass

def test_unmarked(): pass
"""


def two_gpus() -> Any:
    """Return a lender of two GPUs."""
    found = take_inventory(phantom_machine("sm_90x2"), GpuChoice(), {})
    return SimpleNamespace(measures=True, inventory=lambda: found)


def test_tests_get_what_they_used_and_start_in_a_good_order(pytester: pytest.Pytester) -> None:
    items = pytester.getitems(TESTS)
    items[0].config.stash[SESSION] = CudaForkSession(Settings())
    seconds = {
        "short": 1,
        "long": 9,
        "says": 2,
        "shares": 3,
        "of_group": 99,
        "unmarked": 4,
        "plain": 50,
    }
    costs = {
        item.nodeid: Cost(seconds[item.name[5:]], 2, 0 if item.name == "test_plain" else 10 * GIB)
        for item in items
        if item.name != "test_new"
    }
    Packing(costs, two_gpus()).pytest_collection_modifyitems(items)
    assert [item.name for item in items] == [
        "test_new",
        *("test_long", "test_unmarked"),  # each needs two
        *("test_shares", "test_says", "test_short"),
        *("test_plain", "test_of_group"),
    ]
    need = 11 * GIB + (256 << 20)
    wishes = {item.name: marks_of(item).gpus for item in items}
    assert wishes["test_long"] == GpuWish(2, memory=need)
    assert wishes["test_unmarked"] == GpuWish(2, memory=need)
    assert wishes["test_says"] == GpuWish(1, memory=3 * GIB)
    assert wishes["test_shares"] == GpuWish(1, share=True)
    assert wishes["test_new"] == wishes["test_of_group"] == GpuWish(1)
    assert wishes["test_plain"] is None


@pytest.mark.parametrize(
    ("used", "alone"), [(70, False), (72, True), (79, True), (79.5, True), (90, True)]
)
def test_a_test_that_fills_a_gpu_has_it_to_itself(
    pytester: pytest.Pytester, used: float, alone: bool
) -> None:
    lines = "def test_a(): pass\n@__import__('pytest').mark.gpus(2)\ndef test_b(): pass"
    items = pytester.getitems(lines)
    items[0].config.stash[SESSION] = CudaForkSession(Settings())
    costs = {item.nodeid: Cost(1, 2, int(used * GIB)) for item in items}
    Packing(costs, two_gpus()).pytest_collection_modifyitems(items)
    for item in items:
        wish = marks_of(item).gpus
        assert wish is not None
        assert wish.n == 2
        assert (wish.memory is None) == alone


def test_what_can_never_run_here_is_told_at_once_and_with_workers_orders_are_tried(
    pytester: pytest.Pytester,
) -> None:
    marks = [*(f"gpus(1, memory='{size}GiB')" for size in (60, 40, 39, 60)), "gpus(3)"]
    marks.append("gpus(1, memory='900GiB')")
    lines = [f"@pytest.mark.{mark}\ndef test_{i}(): pass" for i, mark in enumerate(marks)]
    items = pytester.getitems("import pytest\n" + "\n".join(lines))
    items[0].config.stash[SESSION] = CudaForkSession(Settings())
    costs = {
        item.nodeid: Cost(seconds, 1, GIB)
        for item, seconds in zip(items, (2, 3, 3, 4, 9, 9), strict=True)
    }
    packing = Packing(costs, two_gpus())
    packing.pytest_collection_modifyitems(items)
    assert [item.name for item in items] == [f"test_{i}" for i in (4, 5, 3, 1, 2, 0)]
    vars(items[0].config)["workerinput"] = {"workercount": 4}
    packing.pytest_collection_modifyitems(items)
    assert {item.name for item in items[:2]} == {"test_4", "test_5"}
    assert sorted(item.name for item in items) == [f"test_{i}" for i in range(6)]


def configured(pytester: pytest.Pytester, *, isolated: Any = False, **about: str) -> Any:
    """Return the configuration of a session with these settings."""
    config = pytester.getitem("def test_func(): pass").config
    config.stash[SESSION] = CudaForkSession(Settings(**about), isolated=isolated)  # type: ignore[arg-type]
    return config


def test_files_are_looked_at_before_anything_runs(
    pytester: pytest.Pytester, tmp_path: Path
) -> None:
    path = tmp_path / "profile.json"
    for about in ({"pack": str(path)}, {"profile": str(tmp_path / "no" / "profile.json")}):
        with pytest.raises(pytest.UsageError, match="--cuda-fork-"):
            begin(configured(pytester, **about), LENDER)
    (tmp_path / "link").symlink_to("no/profile.json")
    with pytest.raises(pytest.UsageError, match="there is no folder"):
        begin(configured(pytester, profile=str(tmp_path / "link")), LENDER)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(pytest.UsageError, match="pipe is no file"):
        begin(configured(pytester, profile=str(tmp_path / "pipe")), LENDER)
    write_profile(str(path), MODELS, {})
    config = configured(pytester, pack=str(path), profile=str(path))
    begin(config, LENDER)
    assert isinstance(config.pluginmanager.get_plugin("cudafork-packing"), Packing)
    assert isinstance(config.pluginmanager.get_plugin("cudafork-costs"), Costs)
    path.write_text("torn {")
    for about in ({"pack": str(path)}, {"profile": str(path)}):
        with pytest.raises(pytest.UsageError, match="is no profile, or torn"):
            begin(configured(pytester, **about), LENDER)


def test_the_process_of_an_isolated_test_reads_and_writes_no_file(
    pytester: pytest.Pytester, tmp_path: Path
) -> None:
    config = configured(pytester, isolated=True, profile=str(tmp_path / "no"), pack="none")
    begin(config, LENDER)
    assert type(config.pluginmanager.get_plugin("cudafork-costs")) is ChildCosts
    assert not config.pluginmanager.has_plugin("cudafork-packing")
