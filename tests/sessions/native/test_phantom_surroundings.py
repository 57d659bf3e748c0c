"""The phantom driver among others: children by exec, NVML, the ledger, callers beside ctypes."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from pytest_cudafork.observe.driver import native_libs
from tests.support.native import Scripts, compile_c, needs_libraries

pytestmark = needs_libraries


@pytest.fixture
def scripts(tmp_path: Path) -> Scripts:
    return Scripts(tmp_path)


def test_a_process_started_by_exec_is_clean_and_finds_the_phantom_by_itself(
    scripts: Scripts,
) -> None:
    done = scripts.run(
        """
        import subprocess
        witness = phantom.install("sm_90x2")
        ctypes.CDLL("libcuda.so.1").cuInit(0)
        text = '''if True:
            import ctypes
            cuda, n = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
            print(cuda.cudafork_state(), cuda.cuInit(0))
            print(cuda.cuDeviceGetCount(ctypes.byref(n)), n.value)
            nvml = ctypes.CDLL("libnvidia-ml.so.1")
            print(nvml.nvmlInit_v2(), nvml.nvmlDeviceGetCount_v2(ctypes.byref(n)), n.value)
        '''
        print(subprocess.run([sys.executable, "-c", text], capture_output=True, text=True).stdout)
        """
    )
    assert done.out.split() == ["0", "0", "0", "2", "0", "0", "2"], done.err
    assert [t["poisoned"] for t in done.touches] == [False, False]


@pytest.mark.parametrize("here", [True, False], ids=["in this process", "in one started by exec"])
def test_the_drivers_other_name_is_the_phantoms_too(here: bool, scripts: Scripts) -> None:
    # As on a machine with a GPU, where the name would lead past the phantom to the real driver.
    real = scripts.folder / "real" / "libcuda.so"
    real.parent.mkdir()
    compile_c("int cuInit(unsigned flags) { return 7; }", real, "-shared", "-fPIC")
    done = scripts.run(
        """
        import subprocess
        witness, text = phantom.install("sm_90"), '''if True:
            import ctypes, os
            cuda, again = ctypes.CDLL("libcuda.so"), ctypes.CDLL("libcuda.so.1")
            print(cuda.cuInit(0), again.cudafork_touch_count())
        '''
        if sys.argv[1] == "True":
            exec(text)
        else:
            subprocess.run([sys.executable, "-c", text])
        """,
        str(here),
        LD_LIBRARY_PATH=str(real.parent),
    )
    assert done.out.split() == ["0", "1"], done.err
    assert (done.only["witness"], done.only["entry"]) == ("phantom", "cuInit")


def test_install_is_undone_and_leaves_the_environment_as_it_was(scripts: Scripts) -> None:
    done = scripts.run(
        """
        before = dict(os.environ)
        witness = phantom.install("sm_90")
        folder = os.path.dirname(native_libs.PHANTOM_DRIVER)
        assert os.environ["TRITON_LIBCUDA_PATH"] == folder
        assert os.environ["LD_LIBRARY_PATH"].split(":")[0] == folder
        assert os.environ["_CUDAFORK_FACE"] == witness.native.face == "sm_90"
        inner = phantom.install("absent")
        assert witness.native.face == "absent"
        inner.undo()
        assert witness.native.face == "sm_90"
        witness.undo()
        assert dict(os.environ) == before
        assert witness.native.face == "absent"
        """
    )
    assert done.status == 0, done.err


def test_the_absent_face_brings_no_nvml(scripts: Scripts) -> None:
    done = scripts.run(
        """
        phantom.install("absent")
        assert native_libs.mapped("libnvidia-ml.so.1") is None
        assert "nvml" not in os.environ["LD_LIBRARY_PATH"]
        nvml = native_libs.load(native_libs.PHANTOM_NVML, os.RTLD_NOW)
        nvml.nvmlErrorString.restype = ctypes.c_char_p
        assert nvml.nvmlInit_v2() == 9 and nvml.nvmlErrorString(9) == b"Driver Not Loaded"
        """
    )
    assert done.status == 0, done.err


def test_nvml_answers_the_same_devices_and_is_no_touch(scripts: Scripts) -> None:
    done = scripts.run(
        """
        witness = phantom.install("sm_90x2")
        nvml, n, m = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_int(), ctypes.c_int()
        by, text, handle = ctypes.byref, ctypes.create_string_buffer(96), ctypes.c_void_p()
        memory = (ctypes.c_uint64 * 3)()
        assert nvml.nvmlDeviceGetCount_v2(by(n)) == 1, "not initialized"
        assert nvml.nvmlInit_v2() == 0
        assert nvml.nvmlDeviceGetCount_v2(by(n)) == 0 and n.value == 2
        assert nvml.nvmlDeviceGetHandleByIndex_v2(2, by(handle)) == 2
        assert nvml.nvmlDeviceGetHandleByIndex_v2(1, by(handle)) == 0
        assert nvml.nvmlDeviceGetCudaComputeCapability(handle, by(n), by(m)) == 0
        assert (n.value, m.value) == (9, 0)
        assert nvml.nvmlDeviceGetName(handle, text, 96) == 0 and b"H100" in text.value
        assert nvml.nvmlDeviceGetUUID(handle, text, 96) == 0 and text.value.startswith(b"GPU-")
        other = ctypes.c_void_p()
        assert nvml.nvmlDeviceGetHandleByUUID(text.value, by(other)) == 0
        assert other.value == handle.value
        assert nvml.nvmlDeviceGetUUID(handle, text, 4) == 7
        assert nvml.nvmlDeviceGetMemoryInfo(handle, memory) == 0 and memory[0] == 80 << 30
        assert nvml.nvmlSystemGetDriverVersion(text, 96) == 0 and text.value[:1].isdigit()
        assert nvml.nvmlSystemGetCudaDriverVersion_v2(by(n)) == 0 and n.value >= 12000
        assert nvml.nvmlDeviceGetMigMode(handle, by(n), by(m)) == 3
        assert nvml.nvmlShutdown() == 0 and nvml.nvmlShutdown() == 1
        print(witness.native.state())
        """
    )
    assert (done.out, done.touches) == ("0\n", []), done.err


def test_a_real_driver_that_is_mapped_already_is_not_displaced(
    scripts: Scripts, tmp_path: Path
) -> None:
    real = tmp_path / "libcuda.so.1"
    compile_c(
        "int cuInit(unsigned f) { return (int)f; }",
        real,
        "-shared",
        "-fPIC",
        "-Wl,-soname,libcuda.so.1",
    )
    done = scripts.run(
        """
        ctypes.CDLL(sys.argv[1])
        before = dict(os.environ)
        try:
            phantom.install("absent")
        except phantom.PhantomError as error:
            print(error)
        assert dict(os.environ) == before
        """,
        str(real),
    )
    assert "is mapped in this process already" in done.out, done.err


@pytest.mark.parametrize("ledger", ["", "/nonexistent/x", "/proc/self/status", "/"])
def test_a_ledger_that_cannot_be_written_stops_nobody(scripts: Scripts, ledger: str) -> None:
    done = scripts.run(
        """
        witness = phantom.install("absent")
        print(ctypes.CDLL("libcuda.so.1").cuInit(0), witness.native.touch_count())
        """,
        _CUDAFORK_LEDGER=ledger,
    )
    assert (done.status, done.out, done.touches) == (0, "100 1\n", []), done.err


def test_a_torn_line_in_the_ledger_loses_only_itself(scripts: Scripts) -> None:
    scripts.ledger.write_text('\n{"k":"touch","id":"half', encoding="utf-8")
    scripts.run('phantom.install("absent"); ctypes.CDLL("libcuda.so.1").cuInit(0)')
    lines = scripts.ledger.read_text(encoding="utf-8").splitlines()
    assert lines[1] == '{"k":"touch","id":"half'
    assert json.loads(lines[2])["k"] == "touch"


def test_a_program_without_python_is_recorded_without_a_stack(
    scripts: Scripts, tmp_path: Path
) -> None:
    program = tmp_path / "program"
    compile_c(
        """
        #include <dlfcn.h>
        #include <stdio.h>
        int main(int argc, char **argv)
        {
            void *cuda = argc == 2 ? dlopen(argv[1], RTLD_NOW) : NULL;
            int (*init)(unsigned) = cuda ? (int (*)(unsigned))dlsym(cuda, "cuInit") : NULL;
            printf("%d", init ? init(0) : -1);
            return 0;
        }
        """,
        program,
    )
    done = scripts.execute([str(program), native_libs.PHANTOM_DRIVER])
    assert done.out == "100", done.err
    assert (done.only["gil"], done.only["stack"]) == ("none", [])
    assert done.only["library"] == str(program)


def test_resetting_makes_the_process_clean_again(scripts: Scripts) -> None:
    done = scripts.run(
        """
        native, cuda = phantom.install("absent").native, ctypes.CDLL("libcuda.so.1")
        seen = []
        for state in (0, 0, 2):
            native.reset(state)
            cuda.cuInit(0)
            seen.append((native.state(), native.touch_count()))
        print(seen)
        """
    )
    assert done.out == "[(1, 1), (1, 1), (2, 1)]\n", done.err
    assert [t["poisoned"] for t in done.touches] == [False, False, True]


def test_the_cuda_runtime_reaches_our_cuinit(scripts: Scripts) -> None:
    runtimes = sorted(Path("/usr/local/cuda").glob("lib*/libcudart.so.*"))
    if not runtimes:
        pytest.skip("no CUDA runtime here")
    done = scripts.run(
        """
        phantom.install("absent")
        number = ctypes.c_int(-1)
        print(ctypes.CDLL(sys.argv[1]).cudaGetDeviceCount(ctypes.byref(number)))
        """,
        str(runtimes[0]),
    )
    assert done.out == "100\n", done.err
    assert "libcudart" in done.touches[0]["library"]


def imported_or_skip(name: str) -> None:
    """Import a module, or skip; ``importorskip`` takes no ``exc_type`` before pytest 8.2."""
    try:
        importlib.import_module(name)
    except ImportError as error:
        pytest.skip(f"could not import {name!r}: {error}")


def test_a_caller_in_cython_is_seen(scripts: Scripts) -> None:
    imported_or_skip("cuda.bindings.driver")
    done = scripts.run(
        """
        witness = phantom.install("absent")
        from cuda.bindings import driver
        assert witness.native.state() == 0, "importing the bindings is no touch"
        driver.cuInit(0)
        """
    )
    assert done.status == 0, done.err
    assert done.only["stack"][0][:2] == [str(scripts.file), scripts.line_of("driver.cuInit(0)")]
    assert "cuda" in done.only["library"]


def test_triton_finds_the_phantom_where_it_looks_for_the_file(scripts: Scripts) -> None:
    imported_or_skip("triton.backends.nvidia.driver")
    done = scripts.run(
        """
        phantom.install("absent")
        from triton.backends.nvidia.driver import CudaDriver, libcuda_dirs
        print(libcuda_dirs() == [os.path.dirname(native_libs.PHANTOM_DRIVER)])
        print(CudaDriver.is_active())
        """
    )
    assert done.out.split() == ["True", "False"], done.err
    assert done.touches, "Triton asks the driver"
