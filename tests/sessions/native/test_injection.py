"""The injection witness, against a driver that behaves as NVIDIA's does."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from pytest_cudafork.observe.driver import native_libs
from tests.support.native import VERSIONS, Scripts, compile_c, interpreter, needs_libraries

pytestmark = needs_libraries

FAKE = Path(__file__).with_name("fake_driver.c").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    compile_c(FAKE, path, "-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-soname,libcuda.so.1")
    return path


@pytest.fixture
def scripts(tmp_path: Path) -> Scripts:
    return Scripts(tmp_path)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", ["PyDLL", "CDLL"])
def test_the_first_cuinit_is_recorded_with_its_line(
    scripts: Scripts, driver: Path, kind: str, version: str
) -> None:
    done = scripts.run(
        """
        witness = injection.install()
        assert witness.reason == "" and witness.native.state() == 0
        cuda = getattr(ctypes, sys.argv[2])(sys.argv[1])
        assert cuda.cuInit(0) == 0  # the first
        assert cuda.cuInit(0) == 0
        print(witness.native.state(), witness.native.touch_count())
        """,
        str(driver),
        kind,
        python=interpreter(version),
    )
    assert done.out == "1 1\n", done.err
    touch = done.only
    assert (touch["witness"], touch["entry"], touch["result"]) == ("injection", "cuInit", None)
    assert touch["gil"] == ("held" if kind == "PyDLL" else "dumped")
    assert touch["stack"][0][:2] == [str(scripts.file), scripts.line_of("# the first")]
    assert touch["libraries"][0] == str(driver), "ours is left out, the driver's is told"
    assert "ffi" in touch["library"], "the caller is not the driver itself"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_thread_without_the_gil_and_one_with_it_never_wait_for_each_other(
    scripts: Scripts, driver: Path, version: str
) -> None:
    """One thread is in cuInit without the GIL; another holds the GIL and waits for its lock."""
    done = scripts.run(
        """
        import time
        os.environ["FAKE_DRIVER_WAITS"] = "1"
        witness = injection.install()

        def round(number):
            released, held = ctypes.CDLL(sys.argv[1]), ctypes.PyDLL(sys.argv[1])
            def first():
                released.cuInit(0)  # has the lock and comes to want the stack
            thread = threading.Thread(target=first)
            thread.start()
            while not released.fake_driver_is_entered():
                time.sleep(0.0005)
            held.cuInit(0)  # has the GIL and comes to want the lock
            thread.join()

        for number in range(20):
            pid = os.fork()
            if pid == 0:
                round(number)
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
        """,
        str(driver),
        python=interpreter(version),
    )
    assert done.status == 0, done.err
    assert [t["gil"] for t in done.touches] == ["dumped"] * 20
    assert {t["stack"][0][2] for t in done.touches} == {"first"}


CHILD = """
    witness = injection.install()
    cuda, number = ctypes.PyDLL(sys.argv[1]), ctypes.c_int()
    assert cuda.cuInit(0) == 0

    def child(depth):
        pid = os.fork()
        if pid:
            assert os.waitpid(pid, 0)[1] == 0
            return
        line = [depth, witness.native.state(), cuda.cuInit(depth)]  # in the child
        line += [cuda.cuDeviceGetCount(ctypes.byref(number)), witness.native.touch_count()]
        os.write(1, (" ".join(map(str, line)) + "\\n").encode())
        if depth == 1:
            child(2)
        os._exit(0)

    child(1)
    print("parent", witness.native.state(), cuda.cuInit(0))
"""


def test_a_poisoned_child_is_recorded_and_answered_as_the_driver_does(
    scripts: Scripts, driver: Path
) -> None:
    done = scripts.run(CHILD, str(driver))
    assert done.status == 0, done.err
    assert done.out.splitlines() == ["1 2 3 3 1", "2 2 3 3 1", "parent 1 0"]
    assert [t["poisoned"] for t in done.touches] == [False, True, True]
    assert [t["result"] for t in done.touches] == [None, 3, 3]
    assert done.touches[1]["stack"][0][1] == scripts.line_of("# in the child")
    assert "ffi" in done.touches[1]["library"]


def test_the_child_is_left_as_it_is_when_patching_is_switched_off(
    scripts: Scripts, driver: Path
) -> None:
    done = scripts.run(CHILD, str(driver), _CUDAFORK_PATCH_CHILD="0")
    assert done.out.splitlines() == ["1 2 3 3 0", "2 2 3 3 0", "parent 1 0"], done.err
    assert len(done.touches) == 1


def test_a_cuinit_too_short_to_hold_a_jump_is_left_alone(scripts: Scripts, tmp_path: Path) -> None:
    short = tmp_path / "libcuda.so.1"
    body = FAKE.replace("int cuInit(unsigned flags)", "int real_cuInit(unsigned flags)")
    tail = (
        '__asm__(".globl cuInit\\n.type cuInit,@function\\n"'
        ' "cuInit: jmp real_cuInit\\n.size cuInit,.-cuInit\\n");'
    )
    if platform.machine() != "x86_64":
        pytest.skip("the trampoline of this test is for x86-64")
    compile_c(body + tail, short, "-shared", "-fPIC", "-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so.1")
    done = scripts.run(CHILD, str(short))
    assert done.out.splitlines() == ["1 2 3 3 0", "2 2 3 3 0", "parent 1 0"], done.err


def test_a_child_forked_before_any_touch_is_clean(scripts: Scripts, driver: Path) -> None:
    done = scripts.run(
        """
        witness = injection.install()
        cuda = ctypes.CDLL(sys.argv[1])
        if os.fork() == 0:
            print(witness.native.state(), cuda.cuInit(0), witness.native.state(), flush=True)
            os._exit(0)
        os.wait()
        """,
        str(driver),
    )
    assert done.out == "0 0 1\n", done.err
    assert not done.only["poisoned"]


def test_a_process_started_by_exec_is_watched_through_the_environment(
    scripts: Scripts, driver: Path
) -> None:
    done = scripts.run(
        """
        import subprocess
        injection.install()
        code = "import ctypes, sys; print(ctypes.PyDLL(sys.argv[1]).cuInit(0))"
        subprocess.run([sys.executable, "-c", code, sys.argv[1]], check=True)
        """,
        str(driver),
    )
    assert done.status == 0, done.err
    assert done.only["stack"][0][:2] == ["<string>", 1]


def test_a_profilers_injection_is_left_alone(scripts: Scripts) -> None:
    done = scripts.run(
        """
        witness = injection.install()
        print(witness.reason)
        assert witness.native is None
        witness.undo()
        assert os.environ["CUDA_INJECTION64_PATH"] == "/opt/nsys/lib.so"
        assert not any("injection" in line for line in open("/proc/self/maps"))
        """,
        CUDA_INJECTION64_PATH="/opt/nsys/lib.so",
    )
    assert done.out == (
        "CUDA_INJECTION64_PATH is already set to '/opt/nsys/lib.so'; left alone\n"
    ), done.err


def test_our_own_path_found_in_the_environment_is_not_a_profilers(scripts: Scripts) -> None:
    done = scripts.run(
        """
        outer = injection.install()
        inner = injection.install()
        assert (inner.reason, inner.native.state()) == ("", 0)
        inner.undo()
        assert os.environ["CUDA_INJECTION64_PATH"] == native_libs.INJECTION
        outer.undo()
        assert "CUDA_INJECTION64_PATH" not in os.environ
        """
    )
    assert done.status == 0, done.err


def test_missing_libraries_are_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(native_libs, "INJECTION", tmp_path / "no.so")
    assert native_libs.why_not()
    with pytest.raises(native_libs.NativeUnavailable, match=r"was not built.*C compiler"):
        native_libs.require()
    with pytest.raises(native_libs.NativeUnavailable, match="cannot be loaded"):
        native_libs.load(__file__, 2)
