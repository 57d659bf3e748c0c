"""The fixtures: ``cuda_state``, ``cuda_uninitialized``, ``phantom_cuda``, the runners' wiring."""

from __future__ import annotations

import pytest

from tests.plugin.helpers import check, failure, line_of, module, needs_torch, outcomes, run_session

NO_CHECK: tuple[str, ...] = ()
CHECKED = ("--cuda-fork-check=poison",)
both = pytest.mark.parametrize("options", [NO_CHECK, CHECKED], ids=["no check", "check"])

STATE = """
from pytest_cudafork import CudaState, Verdict, cuda_state as ask

def in_child(work):
    read, write = os.pipe()
    def tell():
        os.write(write, work().verdict.value.encode())
    child(tell)
    os.close(write)
    with open(read) as pipe:
        return pipe.read()

def test_clean(cuda_state):
    state = cuda_state()
    assert isinstance(state, CudaState)
    assert state.verdict is Verdict.CLEAN
    assert state.safe_to_fork and not state.initialized and not state.poisoned
    assert cuda_state() == state == ask()
    assert in_child(cuda_state) == "clean"

def test_asking_initializes_nothing(cuda_state):
    for _ in range(3):
        cuda_state()
    assert cuda_state().verdict is Verdict.CLEAN

def test_initialized(cuda_state, phantom_cuda):
    touch()
    state = cuda_state()
    assert state.verdict is Verdict.INITIALIZED
    assert state.initialized and not state.safe_to_fork and state.why
    assert in_child(cuda_state) == "poisoned"
    assert in_child(ask) == "poisoned"

def test_clean_again(cuda_state):
    assert cuda_state().verdict is Verdict.CLEAN
"""


@both
def test_cuda_state_tells_the_state_of_this_process(
    options: tuple[str, ...], pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(module(STATE))
    result = run_session(pytester, *options)
    result.assert_outcomes(passed=4)


UNINITIALIZED = """
def test_clean(cuda_uninitialized):
    pass

def test_child_may_touch(cuda_uninitialized):
    child(touch)

def test_touches(cuda_uninitialized):
    touch()  # culprit

def test_comes_too_late(cuda_uninitialized):
    assert 0, "never run"
"""


def test_cuda_uninitialized_names_the_line(pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile(module(UNINITIALIZED))
    result = check(pytester, "poison")
    assert outcomes(result) == {
        "test_clean": "PASSED",
        "test_child_may_touch": "PASSED",
        "test_touches": "PASSED ERROR",
        "test_comes_too_late": "ERROR",
    }
    line = f"{path.name}:{line_of(path, '# culprit')}"
    for test, when in {"test_touches": "during", "test_comes_too_late": "before"}.items():
        story = failure(result, test)
        assert f"CudaTouchError: CUDA is initialized in this process {when} the test" in story
        assert line in story
        assert "state.py" not in story
    assert "never run" not in result.stdout.str()


def test_cuda_uninitialized_without_the_check_says_how_to_learn_the_line(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        module(
            """
@pytest.fixture
def driver(phantom_cuda):
    return ctypes.CDLL("libcuda.so.1")

def test_touches(driver, cuda_uninitialized):
    driver.cuInit(0)

def test_clean(cuda_uninitialized):
    pass
"""
        )
    )
    result = run_session(pytester, "-v")
    assert outcomes(result) == {"test_touches": "PASSED ERROR", "test_clean": "PASSED"}
    assert "Run with --cuda-fork-check to see which line did it" in failure(result, "test_touches")


PHANTOM = """
def devices():
    driver, number = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(-1)
    if driver.cuInit(0) != 0:
        return 0
    assert driver.cuDeviceGetCount(ctypes.byref(number)) == 0
    return number.value

def nvml():
    library, number = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_uint(0)
    if library.nvmlInit_v2() != 0:
        return 0
    assert library.nvmlDeviceGetCount_v2(ctypes.byref(number)) == 0
    return number.value

def surroundings():
    return dict(os.environ), [type(finder) for finder in sys.meta_path], list(sys.path)

def test_before(request):
    request.config.before = surroundings()

def test_one(phantom_cuda):
    assert devices() == nvml() == 1

def test_eight(phantom_cuda):
    phantom_cuda("sm_100x8")
    assert devices() == nvml() == 8
    phantom_cuda("sm_90x2")
    assert devices() == nvml() == 2

def test_hidden(phantom_cuda):
    phantom_cuda.hide()
    phantom_cuda.hide()
    try:
        assert devices() == 0
    except OSError:
        pass

def test_wrong_face(phantom_cuda):
    with pytest.raises(ValueError, match="'h100' is not a face"):
        phantom_cuda("h100")
    assert devices() == 1

def test_children_see_it_too(phantom_cuda):
    phantom_cuda("sm_90x3")
    script = "import ctypes; d = ctypes.CDLL('libcuda.so.1'); n = ctypes.c_int(); d.cuInit(0); "
    script += "d.cuDeviceGetCount(ctypes.byref(n)); print(n.value)"
    output = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert output.stdout == "3\\n"

def test_fails_and_is_undone(phantom_cuda):
    assert devices() == 7

def test_after(request):
    now = surroundings()
    for was, came in zip(request.config.before, now):
        if isinstance(was, dict):
            was.pop("PYTEST_CURRENT_TEST"), came.pop("PYTEST_CURRENT_TEST")
        assert came == was
    try:
        assert devices() == 0
    except OSError:
        pass
"""


@both
def test_phantom_cuda_shows_gpus_for_one_test_and_takes_them_back(
    options: tuple[str, ...], pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(module(PHANTOM))
    result = run_session(pytester, "-v", *options)
    found = outcomes(result)
    assert found.pop("test_fails_and_is_undone") == "FAILED"
    assert found == dict.fromkeys(found, "PASSED")
    assert len(found) == 7


PHANTOM_TORCH = """
import torch

def test_before():
    assert not torch.cuda.is_available()

def test_present(phantom_cuda):
    phantom_cuda("sm_90x2")
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 2
    assert torch.cuda.get_device_capability(1) == (9, 0)
    with pytest.raises((RuntimeError, AssertionError, NotImplementedError)):
        torch.ones(1, device="cuda")

def test_after():
    assert not torch.cuda.is_available()
    # A CPU build of torch and a CUDA build say it differently.
    with pytest.raises((AssertionError, RuntimeError), match="not compiled with CUDA|NVIDIA"):
        torch.cuda.current_device()
"""


@needs_torch
def test_torch_sees_the_phantoms_gpus_too(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(module(PHANTOM_TORCH))
    run_session(pytester).assert_outcomes(passed=3)


RUNNERS = """
import pytest_cudafork

@pytest.fixture(params=["run_forked", "run_spawned", "run_forkserver"])
def run(request):
    return request.getfixturevalue(request.param)

def test_result_of_another_process(run):
    local = 5
    pid, answer = run(lambda x, *, y: (os.getpid(), x + y + local), 1, y=2)
    assert answer == 8
    assert pid != os.getpid()

def test_exception(run):
    def fails():
        raise KeyError("own")
    with pytest.raises(KeyError, match="own"):
        run(fails)

def test_skip(run):
    def skips():
        pytest.skip("from the child")
    run(skips)

def test_crash(run):
    with pytest.raises(pytest_cudafork.ChildCrashed, match="SIGKILL"):
        run(lambda: os.kill(os.getpid(), 9))
"""


@both
def test_the_runners_call_a_function_in_a_child(
    options: tuple[str, ...], pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(module(RUNNERS))
    run_session(pytester, *options).assert_outcomes(passed=9, skipped=3)


def test_the_runners_are_watched_and_the_forking_one_is_guarded(pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile(
        module(
            """
def test_initialize():
    touch()  # culprit

def test_forked(run_forked):
    run_forked(touch)

def test_spawned(run_spawned):
    run_spawned(touch)

def test_forkserver(run_forkserver):
    run_forkserver(touch)

def test_spawned_forks_after_its_touch(run_spawned):
    def work():
        touch()
        child(touch)
    run_spawned(work)
"""
        )
    )
    result = check(pytester, "fork")
    assert outcomes(result) == {
        "test_initialize": "PASSED",
        "test_forked": "FAILED",
        "test_spawned": "PASSED",
        "test_forkserver": "PASSED",
        "test_spawned_forks_after_its_touch": "FAILED",
    }
    story = failure(result, "test_forked")
    assert f"{path.name}:{line_of(path, '# culprit')}" in story
    assert "fork refused" in story
    assert f"{path.name}:{line_of(path, 'run_forked(touch)')} in test_forked" in story


def test_fixtures_are_documented(pytester: pytest.Pytester) -> None:
    result = run_session(pytester, "--fixtures")
    text = result.stdout.str()
    for name in ("run_forked", "run_spawned", "run_forkserver", "cuda_state", "phantom_cuda"):
        assert f"\n{name} -- " in text
    assert "no docstring available" not in text
