"""Sessions whose captures are looked at: failures, suspicions, silence, isolated tests."""

from __future__ import annotations

import json

import pytest

from tests.support.documents import validated
from tests.support.sessions import assert_no_crash, failure, needs_torch, outcomes, run_session

pytestmark = needs_torch

RUNNER = """
import torch

class Runner:
    def __init__(self, planner):
        self.lengths = torch.tensor([1, 2, 3])
        self.plan = planner(self.lengths)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = self.plan * 2  # the read

    def __call__(self, lengths):
        self.lengths.copy_(torch.tensor(lengths))  # the change
        self.graph.replay()
        return self.out
"""

TESTS = """
import pytest, torch
from runner import Runner

def starts(lengths):
    return lengths.cumsum(0)  # the plan

def meant(lengths):
    return lengths.cumsum(0)  # captures: ignore[stale-data]

@pytest.fixture(scope="module")
def shared():
    return Runner(starts)

def test_stale():
    Runner(starts)([4, 5, 6])

def test_of_a_shared_runner(shared):
    shared([4, 5, 6])

def test_of_it_again(shared):
    shared([4, 5, 6])

def test_with_the_same_lengths():
    Runner(starts)([1, 2, 3])

def test_meant():
    Runner(meant)([4, 5, 6])

@pytest.mark.check_captures(False)
def test_marked():
    Runner(starts)([4, 5, 6])

def test_copy():
    Runner(torch.clone)([4, 5, 6])

def test_fails_by_itself():
    assert Runner(starts)([4, 5, 6]).tolist() == [8, 18, 30]

@pytest.mark.xfail(reason="known")
def test_expected_to_fail():
    Runner(starts)([4, 5, 6])
    assert False

@pytest.mark.isolated(method="fork")
def test_in_a_fork():
    Runner(starts)([4, 5, 6])

def test_captures_nothing():
    assert torch.ones(2).sum() == 2

def test_expects_the_replay_to_raise():
    x = torch.ones(3)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x + 1
    del x
    with pytest.raises(RuntimeError):
        graph.replay()
"""

FAILED = {
    "test_stale", "test_of_a_shared_runner", "test_of_it_again", "test_fails_by_itself",
    "test_expected_to_fail", "test_in_a_fork",
}  # fmt: skip


CONFTEST = """
def pytest_cudafork_capture_checked(capture, nodeid):
    with open("told.txt", "a") as file:
        places = [one.where.rpartition("/")[2] for one in capture.findings]
        print(nodeid, capture.verdict, capture.backend, *places, file=file)
"""


def test_what_is_certain_fails_its_test_and_the_rest_is_listed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(runner=RUNNER, test_them=TESTS)
    pytester.makeconftest(CONFTEST)
    result = run_session(
        pytester, "-v", "--cuda-fork-captures", "--cuda-fork-graphs=software",
        "--cuda-fork-json=all.json", "--cuda-fork-sarif=all.sarif",
    )  # fmt: skip
    assert_no_crash(result)
    told = outcomes(result)
    assert {name for name, outcome in told.items() if outcome == "FAILED"} == FAILED
    assert told["test_captures_nothing"] == "PASSED"
    text = failure(result, "test_stale")
    for line in ("# the plan", "# the read", "# the change", "element 0 is 1 and would be 4"):
        assert line in text
    assert "The test itself: skipped" in failure(result, "test_expected_to_fail")
    assert "captured graphs" in failure(result, "test_fails_by_itself")
    result.stdout.fnmatch_lines(
        [
            "*= captured graphs =*",
            "looked at: * captures, * replays",
            "1 suspicion, which may be meant so (they fail no test):",
            "*stale-data*",
            "    seen in test_them.py::test_copy",
            "silenced by comments: 1",
        ]
    )
    assert_told_to_other_programs(pytester)


def assert_told_to_other_programs(pytester: pytest.Pytester) -> None:
    """The JSON, SARIF and the hook have what the terminal has."""
    lines = TESTS.strip().splitlines()
    plan = lines.index("    return lengths.cumsum(0)  # the plan") + 1
    document = validated(json.loads((pytester.path / "all.json").read_text()), "session")
    graphs = document["captured_graphs"]
    (stale,) = [each for each in graphs["errors"] if each["fails"]]
    assert stale["kind"] == "stale-data"
    assert {name.partition("::")[2] for name in stale["tests"]} == FAILED
    (expected,) = [each for each in graphs["errors"] if not each["fails"]]
    assert expected["kind"] == "freed-memory"
    assert [each["tests"] for each in graphs["suspicions"]] == [["test_them.py::test_copy"]]
    assert graphs["captures"] >= len(FAILED)
    assert graphs["silenced"] == 1
    (run,) = json.loads((pytester.path / "all.sarif").read_text())["runs"]
    error, warning = (each for each in run["results"] if each["ruleId"] == "graph-capture")
    assert (error["level"], warning["level"]) == ("error", "warning")
    assert error["locations"][0]["physicalLocation"]["region"]["startLine"] == plan
    assert len(error["codeFlows"][0]["threadFlows"][0]["locations"]) == 3
    told = (pytester.path / "told.txt").read_text().splitlines()
    assert f"test_them.py::test_stale failed software test_them.py:{plan}" in told
    assert f"test_them.py::test_in_a_fork failed software test_them.py:{plan}" in told
    assert "test_them.py::test_copy passed software" in told
    assert not any("test_captures_nothing" in line for line in told)


IN_CHILDREN = """
import multiprocessing, os, pytest
from runner import Runner

def starts(lengths):
    return lengths.cumsum(0)  # the plan

def run():
    Runner(starts)([4, 5, 6])

def test_fork(run_forked):
    run_forked(run)

def test_multiprocessing():
    child = multiprocessing.get_context("fork").Process(target=run)
    child.start()
    child.join()

def test_replayed_in_a_child(run_forked):
    run_forked(Runner(starts), [4, 5, 6])

@pytest.mark.isolated(method="fork")
def test_child_of_an_isolated_test(run_forked):
    run_forked(run)

def test_correct_in_a_child(run_forked):
    run_forked(Runner(starts), [1, 2, 3])

@pytest.fixture(scope="module")
def waiting():
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.read(read, 1)
        run()
        os._exit(0)
    yield pid, write

def test_that_starts_one(waiting):
    pass

def test_that_lets_it_run(waiting):
    pid, write = waiting
    os.write(write, b"x")
    os.waitpid(pid, 0)

@pytest.mark.check_captures(False)
def test_left_alone(run_forked):
    run_forked(run)
"""


def test_what_forked_children_of_a_test_find_fails_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(runner=RUNNER, test_them=IN_CHILDREN)
    options = ("--cuda-fork-captures", "--cuda-fork-graphs=software", "-v")
    result = run_session(pytester, *options)
    assert_no_crash(result)
    failed = {name for name, outcome in outcomes(result).items() if outcome == "FAILED"}
    assert failed == {
        "test_fork", "test_multiprocessing", "test_replayed_in_a_child",
        "test_child_of_an_isolated_test", "test_that_lets_it_run",
    }  # fmt: skip
    for line in ("# the plan", "# the read", "# the change"):
        assert line in failure(result, "test_multiprocessing")
    late = " ".join(failure(result, "test_that_lets_it_run").split())
    assert "(in a process that test_them.py::test_that_starts_one has started)" in late
    result.stdout.fnmatch_lines(["looked at: 6 captures, 6 replays"])


TWICE = """
import pytest, torch
from _pytest.runner import runtestprotocol

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    runtestprotocol(item, nextitem=item)
    runtestprotocol(item, nextitem=nextitem)
    return True
"""

SHARED = """
import pytest, torch

@pytest.fixture(scope="module")
def results():
    x, pool = torch.ones(3), torch.cuda.graph_pool_handle()
    graphs = [torch.cuda.CUDAGraph() for _ in range(3)]
    with torch.cuda.graph(graphs[0], pool=pool):
        x * 2 + 1
    with torch.cuda.graph(graphs[1], pool=pool):
        overwritten = x * 3
    with torch.cuda.graph(graphs[2], pool=pool):
        early = x * 4
    graphs[1].replay()
    graphs[0].replay()
    yield overwritten, early
    x.zero_()

def test_reads_what_is_overwritten(results):
    results[0].sum()

def test_reads_what_is_not_computed(results):
    results[1].sum().item()
"""


def test_what_is_wrong_with_a_shared_result_fails_a_test_that_is_run_again(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeconftest(TWICE)
    pytester.makepyfile(test_them=SHARED)
    result = run_session(pytester, "--cuda-fork-captures", "--cuda-fork-graphs=software")
    assert_no_crash(result)
    result.assert_outcomes(failed=4)


IN_THREADS = """
import pytest
from concurrent.futures import ThreadPoolExecutor
from runner import Runner

def starts(lengths):
    return lengths.cumsum(0)

@pytest.fixture(scope="module")
def shared():
    return Runner(starts)

def test_replays_in_a_thread():
    runner = Runner(starts)
    with ThreadPoolExecutor(1) as other:
        other.submit(runner, [4, 5, 6]).result()

def test_replays_what_a_thread_has_captured():
    with ThreadPoolExecutor(1) as other:
        runner = other.submit(Runner, starts).result()
    runner([4, 5, 6])

@pytest.mark.check_captures(False)
def test_left_alone(shared):
    shared([4, 5, 6])
"""


def test_replays_that_were_not_looked_at_are_said(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(runner=RUNNER, test_them=IN_THREADS)
    result = run_session(pytester, "--cuda-fork-captures", "--cuda-fork-graphs=software")
    assert_no_crash(result)
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(
        [
            "looked at: 1 capture, 0 replays",
            "not looked at: 1 capture of other threads",
            "not looked at: 2 replays in other threads, or of graphs that nobody looked at *",
        ]
    )


MARKED = """
import pytest
from runner import Runner

@pytest.mark.check_captures(True)
def test_marked():
    Runner(lambda lengths: lengths.cumsum(0))([4, 5, 6])

def test_unmarked():
    Runner(lambda lengths: lengths.cumsum(0))([4, 5, 6])
"""


def test_a_marker_turns_it_on_for_its_test_alone(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(runner=RUNNER, test_them=MARKED)
    result = run_session(pytester, "-v", "--cuda-fork-graphs=software")
    assert_no_crash(result)
    assert outcomes(result) == {"test_marked": "FAILED", "test_unmarked": "PASSED"}


def test_off_nothing_of_it_is_imported(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_a(request):
            assert not request.config.pluginmanager.has_plugin("cudafork-captures")
            assert not [name for name in sys.modules if "capture.judge" in name]
            assert not [name for name in sys.modules if "capture.in_tests" in name]
        """
    )
    result = run_session(pytester, "--cuda-fork-captures=off")
    result.assert_outcomes(passed=1)


def test_a_wrong_value_is_told(pytester: pytest.Pytester) -> None:
    result = run_session(pytester, "--cuda-fork-captures=look")
    result.stderr.fnmatch_lines(["*--cuda-fork-captures: 'look' is not a way*check, all, audit*"])


def test_a_look_that_cannot_be_set_up_fails_the_tests_that_import_torch(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture
        def no_methods(monkeypatch):
            import torch
            kind = type("CUDAGraph", (), {"__module__": "torch.cuda.graphs"})
            monkeypatch.setattr(torch.cuda.graphs, "CUDAGraph", kind)
        """
    )
    pytester.makepyfile(
        """
        def test_before(): pass
        def test_without_methods(no_methods): pass
        def test_after(): pass
        """
    )
    result = run_session(pytester, "--cuda-fork-captures=check", "-v")
    assert_no_crash(result)
    assert outcomes(result) == {
        "test_before": "PASSED", "test_without_methods": "FAILED ERROR", "test_after": "PASSED",
    }  # fmt: skip
    told = failure(result, "test_without_methods")
    assert "captured graphs were not looked at, as setting that up failed: AttributeError" in told


def test_a_part_that_cannot_be_set_up_when_its_module_comes_fails_the_test(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        import sys, torch, types

        class Kept(type):
            def __setattr__(cls, name, value):
                raise TypeError(f"{name} stays what it is")

        class Node(metaclass=Kept):
            def _record(self, model, inputs): ...

        def test_before(): pass

        def test_with_trees(monkeypatch):
            name = "torch._inductor.cudagraph_trees"
            trees = types.ModuleType(name)
            trees.CUDAGraphNode = Node
            monkeypatch.setitem(sys.modules, name, trees)

        def test_after(): pass
        """
    )
    result = run_session(pytester, "--cuda-fork-captures=check", "-v")
    assert_no_crash(result)
    assert outcomes(result) == {
        "test_before": "PASSED", "test_with_trees": "PASSED ERROR", "test_after": "PASSED",
    }  # fmt: skip
    told = failure(result, "test_with_trees")
    assert (
        "captured graphs were not looked at, or not fully, as setting that up for torch._" in told
    )
    assert "TypeError: _record stays what it is" in told


def test_stand_ins_that_cannot_be_set_up_fail_the_tests(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import contextlib, torch
        from pytest_cudafork.capture.stand_ins import in_force

        @contextlib.contextmanager
        def broken(failed):
            raise KeyError("CUDAGraph")
            yield

        def setup_module():
            in_force.in_force = broken

        def test_it(): pass
        """
    )
    result = run_session(pytester, "--cuda-fork-graphs=software", "-v")
    assert outcomes(result) == {"test_it": "FAILED ERROR"}
    told = failure(result, "test_it")
    assert "nothing stood for the graphs of torch.cuda, as setting that up failed: KeyErr" in told


def test_a_part_of_the_stand_ins_of_a_fixture_that_cannot_be_set_up_fails_the_test(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        import importlib, importlib.util, sys, torch

        class Compiler:
            def find_spec(self, name, path, target=None):
                if name == "torch._dynamo":
                    return importlib.util.spec_from_loader(name, self)

            def create_module(self, spec): pass

            def exec_module(self, module):
                def set_stance(name, **how):
                    raise TypeError(f"no stance is {name}")
                module.set_stance = set_stance

        def test_before(graph_backend): pass

        def test_it(monkeypatch, graph_backend):
            monkeypatch.setattr(sys, "meta_path", [*sys.meta_path[:1], Compiler(), *sys.meta_path])
            importlib.import_module("torch._dynamo")
            del sys.modules["torch._dynamo"], torch._dynamo

        def test_after(graph_backend): pass
        """
    )
    options = ("--cuda-fork-check=poison", "--cuda-fork-device=phantom:sm_90")
    result = run_session(pytester, *options, "-v")
    assert_no_crash(result)
    assert outcomes(result) == {
        "test_before": "PASSED", "test_it": "PASSED ERROR", "test_after": "PASSED",
    }  # fmt: skip
    told = failure(result, "test_it")
    assert "nothing stood for the graphs of torch.cuda, or not fully, as setting that up" in told
    assert "TypeError: no stance is force_eager" in told
