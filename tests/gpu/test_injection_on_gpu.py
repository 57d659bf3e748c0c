"""The injection witness on NVIDIA's own driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.native import Scripts, needs_libraries

pytestmark = [
    pytest.mark.gpu,
    needs_libraries,
    pytest.mark.skipif(
        not Path("/dev/nvidiactl").exists(), reason="no NVIDIA GPU here (/dev/nvidiactl is missing)"
    ),
]


@pytest.fixture
def scripts(tmp_path: Path) -> Scripts:
    return Scripts(tmp_path)


@pytest.mark.parametrize("kind", ["PyDLL", "CDLL"])
def test_the_first_cuinit_is_recorded_with_its_line(scripts: Scripts, kind: str) -> None:
    done = scripts.run(
        """
        witness = injection.install()
        cuda = getattr(ctypes, sys.argv[1])("libcuda.so.1")
        version = ctypes.c_int()
        assert cuda.cuDriverGetVersion(ctypes.byref(version)) == 0
        assert witness.native.state() == 0, "asking for the version is no touch"
        answer = cuda.cuInit(0)  # the first
        cuda.cuInit(0)
        print(answer, witness.native.state(), witness.native.touch_count())
        """,
        kind,
    )
    assert done.out == "0 1 1\n", done.err
    touch = done.only
    assert touch["gil"] == ("held" if kind == "PyDLL" else "dumped")
    assert touch["stack"][0][:2] == [str(scripts.file), scripts.line_of("# the first")]
    assert "libcuda" not in touch["library"]


POISONED = """
    witness = injection.install()
    cuda, number = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    assert cuda.cuInit(0) == 0
    if os.fork() == 0:
        answer = cuda.cuInit(0)  # in the child
        count = cuda.cuDeviceGetCount(ctypes.byref(number))
        print(answer, count, witness.native.state(), witness.native.touch_count(), flush=True)
        os._exit(0)
    os.wait()
    print(cuda.cuInit(0), cuda.cuDeviceGetCount(ctypes.byref(number)))
"""


def test_a_poisoned_childs_cuinit_is_recorded_and_answers_as_before(scripts: Scripts) -> None:
    done = scripts.run(POISONED)
    assert done.out.splitlines() == ["3 3 2 1", "0 0"], done.err
    assert [t["poisoned"] for t in done.touches] == [False, True]
    assert done.touches[1]["stack"][0][1] == scripts.line_of("# in the child")


def test_without_the_patch_the_driver_gives_the_same_answers(scripts: Scripts) -> None:
    done = scripts.run(POISONED, _CUDAFORK_PATCH_CHILD="0")
    assert done.out.splitlines() == ["3 3 2 0", "0 0"], done.err
    assert len(done.touches) == 1


def test_the_runtime_reaches_the_patched_cuinit_too(scripts: Scripts) -> None:
    """Whether cuGetProcAddress hands out the function that dlsym finds: the patch counts on it."""
    done = scripts.run(
        """
        cuda, pointer = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
        cuda.cuGetProcAddress_v2(b"cuInit", ctypes.byref(pointer), 12000, ctypes.c_uint64(0), None)
        print(ctypes.cast(cuda.cuInit, ctypes.c_void_p).value == pointer.value)
        """
    )
    assert done.out == "True\n", done.err


def test_torch_is_recorded_and_its_child_fails_as_ever(scripts: Scripts) -> None:
    pytest.importorskip("torch")
    done = scripts.run(
        """
        injection.install()
        import torch
        print(torch.cuda.is_available(), torch.cuda.is_initialized())  # asks
        if os.fork() == 0:
            try:
                torch.ones(1, device="cuda")
            except RuntimeError as error:
                print("fork" in str(error), flush=True)
            os._exit(0)
        os.wait()
        print(torch.ones(1, device="cuda").item())
        """
    )
    assert done.out.split() == ["True", "False", "True", "1.0"], done.err
    lines = [frame[1] for frame in done.touches[0]["stack"] if frame[0] == str(scripts.file)]
    assert lines == [scripts.line_of("# asks")]


def test_a_thread_without_the_gil_and_torch_with_it_do_not_deadlock(scripts: Scripts) -> None:
    pytest.importorskip("torch")
    done = scripts.run(
        """
        injection.install()
        import torch
        cuda = ctypes.CDLL("libcuda.so.1")
        thread = threading.Thread(target=lambda: cuda.cuInit(0))
        thread.start()
        torch.cuda.init()
        thread.join()
        print("done")
        """
    )
    assert done.out == "done\n", done.err
    assert len(done.touches) == 1
