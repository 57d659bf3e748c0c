"""The fixtures, each a few lines that hand over to the part that does the work."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from pytest_cudafork.check.session import SESSION

if TYPE_CHECKING:
    from pytest_cudafork.capture.interface.backend import Capture, GraphBackend
    from pytest_cudafork.capture.pair.capture_pair import CapturedPair
    from pytest_cudafork.check.phantom_fixture import PhantomCuda
    from pytest_cudafork.observe.driver.probe import CudaState
    from pytest_cudafork.patch.child_patch import ChildPatch
    from pytest_cudafork.programs.run_script import ScriptRunner


class RunInChild(Protocol):
    """Calls a function in a child process and returns what it returns."""

    def __call__(
        self, fn: Callable[..., Any], /, *args: Any, timeout: float | None = 60.0, **kwargs: Any
    ) -> Any:
        """Run ``fn(*args, **kwargs)`` in a child, for at most ``timeout`` seconds."""


@pytest.fixture
def run_forked(request: pytest.FixtureRequest) -> RunInChild:
    """Call a function in a child that is forked from this process.

    ``run_forked(fn, *args, timeout=60.0, **kwargs)`` returns the function's result, or raises what
    it raised, with the child's traceback as the cause; skips and xfails come back as they are.

    Raises (when called):
        CudaForkError: CUDA is initialized here and the check refuses forks.
        ChildCrashed, ChildExit, ChildTimeout: the child died, left, or took too long.

    """
    return _runner(request, "fork")


@pytest.fixture
def run_spawned(request: pytest.FixtureRequest) -> RunInChild:
    """Call a function in a fresh interpreter; otherwise as ``run_forked``.

    Closures and local functions work; modules that the child cannot import travel by value.
    """
    return _runner(request, "spawn")


@pytest.fixture
def run_forkserver(request: pytest.FixtureRequest) -> RunInChild:
    """Call a function in a child of a clean server process; otherwise as ``run_forked``."""
    return _runner(request, "forkserver")


@pytest.fixture
def start_method(request: pytest.FixtureRequest) -> str:
    """Return the start method with which this test runs: "fork", "forkserver" or "spawn".

    The marker ``start_methods`` names it; without the marker it is that of ``multiprocessing``.
    """
    method: str | None = getattr(request, "param", None)
    if method is None:
        import multiprocessing

        default = multiprocessing.get_all_start_methods()[0]
        method = multiprocessing.get_start_method(allow_none=True) or default
    return method


@pytest.fixture
def run_script(request: pytest.FixtureRequest) -> ScriptRunner:
    """Run a script or a module in a fresh interpreter and tell all that it and its like did.

    ``run_script(path_or_module, *args, env=None, method="spawn", timeout=60.0)`` returns a
    ``ScriptResult``: exit code, output, touches and forks with their lines, the start method in
    force and why.

    Raises (when called):
        CudaForkError, PoisonedTouchError: it did what a test may not; with allow_findings=True
            that is in the result.
        ScriptTimeout: it did not end in time.

    """
    from pytest_cudafork.call.run import caretaker_of
    from pytest_cudafork.compat.pytest_internals import make_basetemp
    from pytest_cudafork.programs.run_script import ScriptRunner

    folder = make_basetemp(request.config)
    return ScriptRunner(caretaker_of(request.config), None if folder is None else str(folder))


def _runner(request: pytest.FixtureRequest, method: str) -> RunInChild:
    from pytest_cudafork.call.run import runner

    return runner(request.config, method)


@pytest.fixture
def cuda_state(request: pytest.FixtureRequest) -> Callable[[], CudaState]:
    """Return a function that tells the state of CUDA in this process, asked from the driver.

    The answer has ``verdict`` (clean, initialized, poisoned, not observable), ``initialized``,
    ``poisoned``, ``safe_to_fork``, torch's own flags beside them, and ``why`` in words. Asking
    initializes nothing. In a child that a test forks the function answers for the child.
    """
    from pytest_cudafork.check.state import current_state

    watch = request.config.stash[SESSION].watch
    return watch.observer.state if watch is not None else current_state


@pytest.fixture
def cuda_uninitialized(
    request: pytest.FixtureRequest, cuda_state: Callable[[], CudaState]
) -> Iterator[None]:
    """Assert that CUDA is not initialized in this process, before the test and after it."""
    from pytest_cudafork.check.state import require_clean

    watch = request.config.stash[SESSION].watch
    observer = watch.observer if watch is not None else None
    require_clean(cuda_state(), observer, "before the test")
    yield
    require_clean(cuda_state(), observer, "during the test")


@pytest.fixture
def phantom_cuda(request: pytest.FixtureRequest) -> Iterator[PhantomCuda]:
    """Let this test see GPUs that are not there; ``phantom_cuda("sm_90x2")`` chooses which.

    They answer questions (count, name, capability, memory) through the driver, NVML and torch; they
    do not compute. Everything is as before when the test ends. Skipped where a real driver is
    already loaded in the process.
    """
    from pytest_cudafork.check.phantom_fixture import phantom_for

    yield from phantom_for(request.config.stash[SESSION])


@pytest.fixture
def child_patch(request: pytest.FixtureRequest) -> Iterator[ChildPatch]:
    """Patch attributes, items and variables in this process and in all that the test starts.

    ``child_patch.setattr("package.module.name", value)``, and ``delattr``, ``setitem``,
    ``delitem``, ``setenv``, ``delenv`` as ``monkeypatch`` has them; all is undone with the test.

    Raises (when called):
        AttributeError, KeyError: There is nothing of that name to patch.
        ChildError: The value cannot travel; in the teardown: a child could not apply a patch.

    """
    from pytest_cudafork.compat.unpatched import shutil
    from pytest_cudafork.patch.child_patch import ChildPatch

    __tracebackhide__ = True
    factory: pytest.TempPathFactory = request.getfixturevalue("tmp_path_factory")
    folder = str(factory.mktemp("child_patch"))
    patch = ChildPatch(folder)
    yield patch
    try:
        patch.undo()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class CapturePair(Protocol):
    """Runs warm-up and capture of one forward and checks the pair."""

    def __call__(
        self, create_forward_fn: Callable[..., Any], desc: Any, **options: Any
    ) -> CapturedPair:
        """Check the pair; the options are those of ``capture.pair.capture_pair``."""


@pytest.fixture
def graph_backend(request: pytest.FixtureRequest) -> Iterator[GraphBackend]:
    """Give the way in which this test captures graphs: ``.name``, and ``.device`` for its tensors.

    The marker ``graph_capture(backends=[...])`` and ``--cuda-fork-graphs`` choose it; else it is
    real graphs where there is a GPU, and the software graph elsewhere. Skips the test where there
    is none of the kind that the marker names.
    """
    from pytest_cudafork.capture.marker import backend_for_test

    yield from backend_for_test(request)


@pytest.fixture
def capture_pair(graph_backend: GraphBackend) -> Iterator[CapturePair]:
    """Run warm-up and capture as a graph manager does, and check that they fit together.

    ``pair = capture_pair(create_forward_fn, desc, mode="FULL", persistent={...}, outputs=...,
    vary=[...])`` has ``warmup`` and ``captured`` (the states), ``graph`` and ``report``. Graphs are
    let go of when the test ends.

    Raises (when called):
        CapturePairError: something is wrong; the message has each finding with its path and line.
        GraphNotJudgedError: the backend cannot run what the code does.
        GraphUsageError: the factory or the arguments cannot be checked.

    """
    from pytest_cudafork.capture.pair.capture_pair import capture_pair as check
    from pytest_cudafork.capture.replay.cleanup import release

    made: list[weakref.ref[Capture]] = []  # a pair that the test drops is gone at once

    def call(*args: Any, **kwargs: Any) -> CapturedPair:
        __tracebackhide__ = True
        pair = check(*args, **{"backend": graph_backend.name, **kwargs})
        made.append(weakref.ref(pair.graph))
        return pair

    yield call
    for graph in made:
        release(graph())
