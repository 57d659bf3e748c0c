"""The fork guard: what it refuses, what it lets pass, what it says, and that no child is made."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from pytest_cudafork.check.guard import ForkDecision, Rules, Watched, allowed_module, install
from pytest_cudafork.errors import CudaForkError
from pytest_cudafork.observe.driver.probe import CudaState, Driver, Verdict
from pytest_cudafork.observe.story.stories import History
from tests.support.sessions import (
    check,
    counts,
    failure,
    line_of,
    module,
    needs_torch,
    outcomes,
    run_python,
    run_session,
)

WAYS = """
from os import fork as forked_by_another_name
import concurrent.futures
import multiprocessing.resource_tracker
import pty

import pytest_cudafork

FORK = multiprocessing.get_context("fork")

def children():
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return file.read().split()

@pytest.fixture(autouse=True)
def no_child_is_made():
    before = children()
    yield
    # Less multiprocessing's own resource tracker, which is started by exec.
    tracker = str(multiprocessing.resource_tracker._resource_tracker._pid)
    assert set(children()) - {tracker} == set(before) - {tracker}

def test_clean_process():
    child()
    process = FORK.Process(target=abs, args=(1,))
    process.start()
    process.join()

def test_initialize():
    touch()  # culprit

def test_fork():
    os.fork()  # forks

def test_by_another_name():
    forked_by_another_name()

def test_forkpty():
    os.forkpty()

def test_pty():
    pty.fork()

def test_process():
    FORK.Process(target=abs, args=(1,)).start()

def test_pool():
    FORK.Pool(1)

def test_executor():
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=FORK) as pool:
        pool.submit(abs, -1)

def test_in_a_thread():
    caught = []
    def work():
        try:
            os.fork()
        except pytest_cudafork.CudaForkError as error:
            caught.append(error)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    raise caught[0]

def test_expected_by_the_test():
    with pytest.raises(pytest_cudafork.CudaForkError, match="fork refused"):
        os.fork()

def test_subprocess():
    subprocess.run(["true"], check=True)
    subprocess.run(["true"], check=True, preexec_fn=os.setsid, close_fds=False)
    os.system("true")
    with os.popen("true"):
        pass

def test_program_by_fork_and_exec():
    assert os.spawnv(os.P_WAIT, "/bin/true", ["true"]) == 0
    assert os.spawnlp(os.P_WAIT, "true", "true") == 0

def test_program_in_a_terminal():
    pty.spawn(["true"], lambda fd: b"")

def test_fork_beside_a_program_in_a_terminal():
    try:
        pty.spawn(["true"], lambda fd: os.fork() and b"")
    finally:
        os.wait()  # for the program

def test_spawn():
    process = multiprocessing.get_context("spawn").Process(target=abs, args=(1,))
    process.start()
    process.join()
    assert process.exitcode == 0

@pytest.mark.cuda_fork_ok(reason="the child only computes")
def test_marked():
    child()

def test_after_the_marked_one():
    os.fork()
"""


REFUSED = (
    *("test_fork", "test_by_another_name", "test_forkpty", "test_pty", "test_process"),
    *("test_pool", "test_executor", "test_in_a_thread", "test_after_the_marked_one"),
    "test_fork_beside_a_program_in_a_terminal",
)


def test_every_way_to_fork_is_refused_before_a_child_is_made(pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile(module(WAYS))
    result = check(pytester, "fork")
    found = outcomes(result)
    assert {name for name, outcome in found.items() if outcome != "PASSED"} == set(REFUSED)
    assert {found[name] for name in REFUSED} == {"FAILED"}
    assert counts(result)["forks guarded"] == len(REFUSED) + 1
    assert counts(result)["forks allowed while initialized"] == 1
    culprit = f"{path.name}:{line_of(path, '# culprit')}: in test_initialize"
    told_in_full = 0
    for name in REFUSED:
        story = failure(result, name)
        assert "CudaForkError: fork refused" in story
        assert culprit in story
        told_in_full += "what to do:" in story
        assert "cuda_fork_ok(reason='...')" in story
    assert told_in_full == 1
    story = failure(result, "test_fork")
    forks = f"{path.name}:{line_of(path, '# forks')} in test_fork"
    texts = ["CUDA was initialized by", culprit, "what to do:", "os.fork was called by", forks]
    places = [story.find(text) for text in texts]
    assert -1 not in places
    assert places == sorted(places)
    assert "os.forkpty was called by" in failure(result, "test_pty")


def test_only_the_forking_line_is_shown_above_the_story(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(module("def test_a():\n    touch()\n    os.fork()\n"))
    story = failure(check(pytester, "fork"), "test_a")
    assert ">       os.fork()\n" in story.replace(" \n", "\n")
    assert "guard.py" not in story


def test_a_name_that_was_imported_before_the_watch_began_is_guarded_too(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(pytester.path)
    pytester.makepyfile(early="from os import fork, forkpty\nfrom os import fork as split\n")
    pytester.makepyfile(
        module(
            """
import early

def test_initialize():
    touch()

@pytest.mark.parametrize("name", ["fork", "forkpty", "split"])
def test_early(name):
    if getattr(early, name)() in (0, (0, -1)):
        os._exit(0)
"""
        )
    )
    plugin = ("-p", "early", "-p", "pytest_cudafork.plugin")
    result = run_session(pytester, "-v", "--cuda-fork-check", plugin=plugin)
    assert outcomes(result) == {
        "test_initialize": "PASSED",
        "test_early[fork]": "FAILED",
        "test_early[forkpty]": "FAILED",
        "test_early[split]": "FAILED",
    }


def test_modules_on_the_list_may_fork_and_their_children_are_watched(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        workers=module("def start(work=lambda: None):\n    child(work)\n"),
        other=module("def start():\n    child()\n"),
    )
    pytester.makepyfile(
        module(
            """
import other, workers

def test_initialize():
    touch()

def test_allowed():
    workers.start()

def test_allowed_and_poisoned():
    workers.start(touch)

def test_not_allowed():
    other.start()
"""
        )
    )
    result = check(pytester, "fork", "--cuda-fork-allow=some.where,workers")
    assert outcomes(result) == {
        "test_initialize": "PASSED",
        "test_allowed": "PASSED",
        "test_allowed_and_poisoned": "FAILED",
        "test_not_allowed": "FAILED",
    }
    assert "was forked from an init" in failure(result, "test_allowed_and_poisoned")
    assert "CudaForkError" in failure(result, "test_not_allowed")
    assert set(outcomes(check(pytester, "fork", "-k", "allowed")).values()) == {"PASSED"}


@needs_torch
@pytest.mark.parametrize("args", [(), ("--cuda-fork-allow=pkg.workers,another",)])
def test_workers_of_a_data_loader_may_fork_and_are_watched(
    pytester: pytest.Pytester, args: tuple[str, ...]
) -> None:
    pytester.makepyfile(
        module(
            """
import torch
from torch.utils.data import DataLoader

def touching(values):
    torch.cuda.is_available()
    return torch.tensor(values)

@pytest.mark.filterwarnings("ignore")
def test_harmless_workers():
    torch.cuda.is_available()
    loader = DataLoader([1, 2], num_workers=1, multiprocessing_context="fork")
    assert [int(x) for x in loader] == [1, 2]

@pytest.mark.filterwarnings("ignore")
def test_touching_workers():
    loader = DataLoader(
        [1, 2], num_workers=1, multiprocessing_context="fork", collate_fn=touching
    )
    assert [int(x) for x in loader] == [1, 2]
"""
        )
    )
    result = check(pytester, "fork", *args)
    assert outcomes(result) == {
        "test_harmless_workers": "PASSED",
        "test_touching_workers": "FAILED",
    }
    story = failure(result, "test_touching_workers")
    assert "in touching" in story
    assert "was forked from an initialized process" in story
    assert counts(result)["forks allowed while initialized"] == 2


# -- the guard alone ---------------------------------------------------------------------------


class Stub:
    """An observer that answers with a given verdict."""

    simulated = True

    def __init__(self, verdict: Verdict) -> None:
        self.answer = CudaState(verdict, Driver.UNKNOWN, None, None, "because")
        self.forks: list[dict[str, object]] = []

    def state(self) -> CudaState:
        return self.answer

    def settle(self) -> None:
        pass

    def note_fork(self, **fork: object) -> str:
        self.forks.append(fork)
        return "1-1"

    def history(self) -> History:
        return History()


def rules(verdict: Verdict, *, refuse: bool = True, allow: tuple[str, ...] = ()) -> Rules:
    return Rules(cast(Watched, Stub(verdict)), refuse, allow)


@pytest.mark.parametrize(
    ("verdict", "refuse", "expected"),
    [
        (Verdict.INITIALIZED, True, ForkDecision.GUARDED),
        (Verdict.POISONED, True, ForkDecision.GUARDED),
        (Verdict.INITIALIZED, False, ForkDecision.WATCHED),
        (Verdict.NOT_OBSERVABLE, True, ForkDecision.UNKNOWN),
        (Verdict.NOT_OBSERVABLE, False, ForkDecision.UNKNOWN),
    ],
)
def test_only_what_is_known_to_be_unclean_is_refused(
    verdict: Verdict, refuse: bool, expected: ForkDecision
) -> None:
    made = rules(verdict, refuse=refuse)
    decision, rule = made.decide(made.observer.state(), sys._getframe())
    assert decision is expected
    assert bool(rule) == (expected is not ForkDecision.GUARDED)


def test_the_marker_in_force_allows_and_its_reason_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_CUDAFORK_FORK_OK", "why not")
    made = rules(Verdict.INITIALIZED)
    decision, rule = made.decide(made.observer.state(), sys._getframe())
    assert decision is ForkDecision.ALLOWED
    assert "why not" in rule


def test_a_prefix_allows_a_package_and_not_its_namesakes() -> None:
    outer = SimpleNamespace(f_globals={"__name__": "data.worker"}, f_back=None)
    inner = SimpleNamespace(f_globals={"__name__": "multiprocessing.popen_fork"}, f_back=outer)
    frame = cast("sys._getframe.__class__", inner)  # type: ignore[name-defined]
    assert allowed_module(frame, ("data",)) == "data"
    assert allowed_module(frame, ("data.worker",)) == "data.worker"
    assert allowed_module(frame, ("dat", "data.work", "worker")) == ""
    assert allowed_module(None, ("data",)) == ""


def test_a_guard_refuses_while_it_is_installed_and_only_then() -> None:
    original = os.fork
    outer = rules(Verdict.INITIALIZED)
    undo = install(outer)
    try:
        with pytest.raises(CudaForkError, match="something that was not seen \\(because\\)"):
            os.fork()
        # Clean for the inner one, and still refused by the outer one.
        undo_inner = install(rules(Verdict.CLEAN))
        with pytest.raises(CudaForkError):
            os.fork()
        undo_inner()
        with pytest.raises(CudaForkError):
            os.fork()
    finally:
        undo()
    assert os.fork is original
    _fork_and_wait()
    assert len(cast(Stub, outer.observer).forks) == 3


def _fork_and_wait() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def test_the_guard_loads_no_lazy_module(tmp_path: Path) -> None:
    (tmp_path / "heavy.py").write_text("print('loaded')")
    told = run_python(
        """
import importlib.util, os, sys
sys.path.insert(0, "")
spec = importlib.util.find_spec("heavy")
spec.loader = importlib.util.LazyLoader(spec.loader)
sys.modules["heavy"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
from pytest_cudafork.check.guard import Rules, install
undo = install(Rules(None, refuse=True))
print(os.fork.__name__)
undo()
""",
        tmp_path,
    )
    assert told == "fork\n"


def test_a_name_imported_during_the_session_is_given_back_too(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text("from os import fork as split")
    told = run_python(
        """
import os, sys
sys.path.insert(0, "")
real = [os.fork]  # in a list, where the guard does not look
from pytest_cudafork.check.guard import Rules, install
undo = install(Rules(None, refuse=True))
import late
print(late.split is real[0])
undo()
print(late.split is real[0], os.fork is real[0])
""",
        tmp_path,
    )
    assert told == "False\nTrue True\n"


EXECS = """
COMMAND = [sys.executable, "-c", "pass"]

def end_of(pid):
    assert os.waitpid(pid, 0)[1] == 0

def test_initialize():
    touch()

def test_executes():
    pid = os.fork()  # executes
    if pid == 0:
        os.execvp(COMMAND[0], COMMAND)
    end_of(pid)

def test_touches_before():
    pid = os.fork()
    if pid == 0:
        touch()  # before
        os.execv(COMMAND[0], COMMAND)
    end_of(pid)

def execute():
    os.execv(COMMAND[0], COMMAND)

def test_another_function_executes():
    pid = os.fork()  # refused
    if pid == 0:
        execute()
    end_of(pid)
"""


def test_a_function_that_goes_on_to_exec_may_fork_and_its_child_is_watched(
    pytester: pytest.Pytester,
) -> None:
    path = pytester.makepyfile(module(EXECS))
    result = run_session(pytester, "-v", "--cuda-fork-check")
    assert outcomes(result) == {
        "test_initialize": "PASSED",
        "test_executes": "PASSED",
        "test_touches_before": "FAILED",
        "test_another_function_executes": "FAILED",
    }
    assert f":{line_of(path, '# before')}" in failure(result, "test_touches_before")
    assert f":{line_of(path, '# refused')}" in failure(result, "test_another_function_executes")
    place = f"{path.name}:{line_of(path, '# executes')} in test_executes"
    result.stdout.fnmatch_lines([f"*{place}: test_executes goes on to exec"])
    assert counts(result)["forks allowed while initialized"] == 2
