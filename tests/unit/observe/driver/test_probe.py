"""The driver probe and the judgment made of it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cudafork.observe.driver.probe import (
    CudaState,
    Driver,
    DriverAnswer,
    TorchFlags,
    Verdict,
    ask_driver,
    ask_torch,
    forked_without_exec,
    judge,
)

NO_TORCH = TorchFlags(None, None)


def run(script: str, *args: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *args],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def build(tmp_path: Path, source: str) -> Path:
    library = tmp_path / "libcuda.so.1"
    (tmp_path / "fake.c").write_text(source)
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", library, tmp_path / "fake.c"],
        check=True,
    )
    return library


DRIVER = """
static int ready;
int cuInit(unsigned flags) { (void)flags; ready = 1; return 0; }
int cuDeviceGetCount(int *n) { *n = 1; return ready ? 0 : 3; }
"""
ASK = """
    import ctypes, sys
    from pytest_cudafork.observe.driver.probe import ask_driver
    library = ctypes.CDLL(sys.argv[1])
    print(ask_driver().driver.value)
    if hasattr(library, "cuInit"):
        library.cuInit(0)
        print(ask_driver().driver.value)
    print(ask_driver().detail)
"""


def test_without_a_driver_the_answer_is_not_loaded_and_nothing_is_loaded() -> None:
    out = run(
        """
        from pytest_cudafork.observe.driver.probe import ask_driver
        print(ask_driver().driver.value)
        print("libcuda" in open("/proc/self/maps").read())
        """
    )
    assert out.split("\n") == ["not loaded", "False"]


@pytest.mark.parametrize("error", ["PermissionError", "RuntimeError"])
def test_a_driver_that_a_hook_of_the_audit_lets_nobody_ask_is_not_known(error: str) -> None:
    out = run(
        """
        import ctypes, sys
        from pytest_cudafork.observe.driver.probe import ask_driver
        ask_driver()
        def forbid(event, args):
            if event == "ctypes.dlopen":
                raise getattr(__builtins__, sys.argv[1])("no libraries")
        sys.addaudithook(forbid)
        print(*ask_driver())
        """,
        error,
    )
    assert out == f"Driver.UNKNOWN the driver could not be asked: {error}('no libraries')"


def test_being_mapped_is_not_being_initialized(tmp_path: Path) -> None:
    out = run(ASK, str(build(tmp_path, DRIVER)))
    assert out.split("\n")[:2] == ["loaded, not initialized", "initialized"]


def test_a_library_with_the_drivers_name_that_is_none_is_not_observable(tmp_path: Path) -> None:
    out = run(ASK, str(build(tmp_path, "int nothing;")))
    assert out.split("\n")[0] == "unknown"
    assert "it is not an NVIDIA driver" in out


@pytest.mark.parametrize("code", [34, 999])
def test_an_answer_that_means_nothing_is_not_observable(tmp_path: Path, code: int) -> None:
    source = f"int cuDeviceGetCount(int *n) {{ *n = 0; return {code}; }}"
    out = run(ASK, str(build(tmp_path, source)))
    assert out == f"unknown\ncuDeviceGetCount answered {code}"


def test_the_real_drivers_answer_in_a_poisoned_child_is_corrected_by_the_fork_record(
    tmp_path: Path,
) -> None:
    # As measured on a GPU: in a child the driver forgets that it was initialized.
    source = """
    #include <unistd.h>
    static int owner;
    int cuInit(unsigned flags) { (void)flags; owner = getpid(); return 0; }
    int cuDeviceGetCount(int *n) { *n = 1; return owner == getpid() ? 0 : 3; }
    """
    out = run(
        """
        import ctypes, os, sys
        from pytest_cudafork import cuda_state
        print(cuda_state().verdict.value, flush=True)
        ctypes.CDLL(sys.argv[1]).cuInit(0)
        print(cuda_state().verdict.value, flush=True)
        if os.fork() == 0:
            print("child", cuda_state().verdict.value, flush=True)
            if os.fork() == 0:
                print("grandchild", cuda_state().verdict.value, flush=True)
                os._exit(0)
            os.wait()
            os._exit(0)
        os.wait()
        """,
        str(build(tmp_path, source)),
    )
    assert out.split("\n") == ["clean", "initialized", "child poisoned", "grandchild poisoned"]


def test_a_process_forked_before_the_record_began_is_not_observable(tmp_path: Path) -> None:
    out = run(
        """
        import ctypes, os, sys
        ctypes.CDLL(sys.argv[1])
        if os.fork() == 0:
            from pytest_cudafork import cuda_state
            print(cuda_state().verdict.value, flush=True)
            os._exit(0)
        os.wait()
        """,
        str(build(tmp_path, DRIVER)),
    )
    assert out == "not observable"


def test_an_execd_process_is_known_not_to_be_forked() -> None:
    out = run(
        "from pytest_cudafork.observe.driver.probe import forked_without_exec as f; print(f())"
    )
    assert out == "False"


def test_where_proc_does_not_tell_the_answer_is_unknown(tmp_path: Path) -> None:
    assert forked_without_exec(str(tmp_path)) is None


def test_torch_is_never_imported_to_be_asked() -> None:
    out = run(
        """
        import sys
        from pytest_cudafork import cuda_state
        print(cuda_state().torch_initialized, "torch" in sys.modules)
        """
    )
    assert out == "None False"


def test_asking_here_gives_a_state() -> None:
    assert ask_driver().driver in set(Driver)
    assert isinstance(ask_torch(), TorchFlags)


@given(
    st.sampled_from(Driver),
    st.sampled_from([None, False, True]),
    st.sampled_from([None, False, True]),
    st.booleans(),
    st.sampled_from([None, 7]),
    st.booleans(),
)
def test_the_judgment_never_calls_clean_what_anything_says_is_not(
    driver: Driver,
    initialized: bool | None,
    bad_fork: bool | None,
    simulated: bool,
    poisoned_by: int | None,
    unwatched: bool,
) -> None:
    state: CudaState = judge(
        DriverAnswer(driver, "detail"),
        TorchFlags(initialized, bad_fork),
        simulated_touch=simulated,
        poisoned_by=poisoned_by,
        forked_unwatched=unwatched,
    )
    poisoned = poisoned_by is not None or bool(bad_fork) or driver is Driver.POISONED
    assert state.poisoned == poisoned
    if not poisoned:
        assert state.initialized == (driver is Driver.INITIALIZED or bool(initialized) or simulated)
    if state.verdict is Verdict.CLEAN:
        assert driver in (Driver.NOT_LOADED, Driver.NOT_INITIALIZED)
        assert not (unwatched and driver is Driver.NOT_INITIALIZED)
    assert state.why
    assert state.safe_to_fork == (state.verdict is Verdict.CLEAN)
