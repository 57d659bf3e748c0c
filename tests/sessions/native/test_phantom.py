"""The phantom driver: what is a touch, what it answers, and what a fork does to it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pytest_cudafork.observe.driver import native_libs
from tests.support.native import Scripts, needs_libraries

pytestmark = needs_libraries

CUDA_H = Path("/usr/local/cuda/include/cuda.h")


@pytest.fixture
def scripts(tmp_path: Path) -> Scripts:
    return Scripts(tmp_path)


def exported(library: str) -> set[str]:
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("no nm here")
    text = subprocess.run([nm, "-D", library], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r" [TW] (\w+)", text))


def test_being_mapped_and_asked_for_its_version_is_no_touch(scripts: Scripts) -> None:
    done = scripts.run(
        """
        witness = phantom.install("absent")
        cuda, number, text = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_char_p()
        pointer = ctypes.c_void_p()
        assert cuda.cuDriverGetVersion(ctypes.byref(number)) == 0 and number.value >= 12000
        assert cuda.cuGetErrorString(100, ctypes.byref(text)) == 0
        assert text.value == b"no CUDA-capable device is detected"
        assert cuda.cuGetErrorName(3, ctypes.byref(text)) == 0
        assert text.value == b"CUDA_ERROR_NOT_INITIALIZED"
        assert cuda.cuGetErrorName(12345, ctypes.byref(text)) == 1 and text.value is None
        assert cuda.cuGetProcAddress_v2(b"cuInit", ctypes.byref(pointer), 12000, 0, None) == 0
        assert cuda.cuDeviceGetCount(ctypes.byref(number)) == 3
        print(witness.native.state(), witness.native.touch_count())
        """
    )
    assert (done.out, done.touches) == ("0 0\n", []), done.err


def test_cuinit_is_a_touch_with_its_answer_and_its_caller(scripts: Scripts) -> None:
    done = scripts.run(
        """
        witness = phantom.install("absent")
        cuda = ctypes.CDLL("libcuda.so.1")
        print(cuda.cuInit(0), witness.native.state(), witness.native.touch_count())
        """,
        _CUDAFORK_OWNER="gw3",
        _CUDAFORK_PHASE="collection",
        PYTEST_CURRENT_TEST='a.py::t["x\\y"] (call)',
    )
    assert done.out == "100 1 1\n", done.err
    touch = done.only
    assert (touch["k"], touch["witness"], touch["entry"]) == ("touch", "phantom", "cuInit")
    assert (touch["result"], touch["poisoned"], touch["again"]) == (100, False, False)
    assert (touch["owner"], touch["phase"]) == ("gw3", "collection")
    assert touch["test"] == 'a.py::t["x\\y"] (call)'
    assert "ffi" in touch["library"]
    assert touch["library"] == touch["libraries"][0]
    assert not any("libcuda" in library for library in touch["libraries"])
    assert len(touch["libraries"]) == len(set(touch["libraries"]))
    assert touch["id"] == f"{touch['pid']}-{touch['t']}"
    assert touch["tid"] == touch["pid"]


def test_identical_touches_are_recorded_once_and_all_are_counted(scripts: Scripts) -> None:
    done = scripts.run(
        """
        witness = phantom.install("absent")
        cuda = ctypes.CDLL("libcuda.so.1")
        for name in ("test_a", "test_b"):
            os.environ["PYTEST_CURRENT_TEST"] = name
            for _ in range(1000):
                cuda.cuInit(0)
        cuda.cuInit(0)
        print(witness.native.touch_count())
        """
    )
    assert done.out == "2001\n", done.err
    # The same line in another test is another finding, as is another line.
    assert [t["test"] for t in done.touches] == ["test_a", "test_b", "test_b"]
    assert [t["again"] for t in done.touches] == [False, True, True]


def test_who_sees_a_touch_of_another_thread_can_wait_for_its_record(scripts: Scripts) -> None:
    done = scripts.run(
        """
        import threading, time
        native, ledger = phantom.install("absent").native, os.environ["_CUDAFORK_LEDGER"]
        cuda, seen = ctypes.CDLL("libcuda.so.1"), []
        os.environ["_CUDAFORK_LEDGER"] = ledger + ".fifo"  # is opened when it is read
        os.mkfifo(ledger + ".fifo")
        thread = threading.Thread(target=cuda.cuInit, args=(0,))
        thread.start()
        while not native.state():
            time.sleep(0.001)
        seen.append(native.is_writing())
        pid = os.fork()
        if not pid:
            os._exit(native.is_writing())
        seen.append(os.waitpid(pid, 0)[1])
        record = open(ledger + ".fifo").read()
        thread.join()
        os.environ["_CUDAFORK_LEDGER"] = ledger
        cuda.cuInit(0)
        print(*seen, '"touch"' in record, native.is_writing(), native.touch_count())
        """
    )
    assert done.out == "True 0 True False 2\n", done.err


@pytest.mark.parametrize("known", ["from the session", "from a record"])
def test_a_record_lost_for_want_of_descriptors_is_marked_on_the_ledger_alone(
    known: str, scripts: Scripts
) -> None:
    scripts.ledger.chmod(0o640)
    done = scripts.run(
        """
        import resource
        witness, ledger = phantom.install("absent"), os.environ["_CUDAFORK_LEDGER"]
        cuda = ctypes.CDLL("libcuda.so.1")
        if sys.argv[1] == "from the session":
            witness.native.remember(ledger, "")
        else:
            cuda.cuInit(0)

        def lose_a_record():
            os.environ["PYTEST_CURRENT_TEST"] = str(len(modes))  # a finding of its own
            resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
            cuda.cuInit(0)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            modes.append(oct(os.stat(ledger).st_mode & 0o777))

        (soft, hard), modes = resource.getrlimit(resource.RLIMIT_NOFILE), []
        lose_a_record()
        os.rename(ledger, ledger + ".kept")  # so that the next has another number
        os.close(os.open(ledger, os.O_CREAT))
        os.chmod(ledger, 0o640)
        lose_a_record()
        witness.native.remember(ledger, "")  # another session of this process has made it
        lose_a_record()
        os.unlink(ledger)
        os.symlink(ledger + ".kept", ledger)
        os.chmod(ledger, 0o640)
        lose_a_record()
        print(*modes)
        """,
        known,
    )
    assert done.out == "0o740 0o640 0o740 0o640\n", done.err


def test_every_entry_point_of_cuda_h_is_there_and_no_other() -> None:
    names = {n for n in exported(native_libs.PHANTOM_DRIVER) if n.startswith("cu")}
    ours = {n for n in names if n.startswith("cudafork_")}
    assert ours == {
        "cudafork_arm",
        "cudafork_get_face",
        "cudafork_hook",
        "cudafork_make_sick",
        "cudafork_remember",
        "cudafork_reset",
        "cudafork_set_face",
        "cudafork_state",
        "cudafork_touch_count",
        "cudafork_unhook",
        "cudafork_unwritten",
    }
    assert not names & {"cuInit_v2", "cuDriverGetVersion_v2", "cuGetProcAddress_v2_ptsz"}
    assert {"cuMemAlloc", "cuMemAlloc_v2", "cuLaunchKernel_ptsz", "cuMemcpyHtoD_v2_ptds"} <= names
    if CUDA_H.exists():
        text = CUDA_H.read_text(encoding="utf-8", errors="replace")
        declared = set(re.findall(r"^CUresult CUDAAPI (cu\w+)\(", text, re.M))
        assert len(declared) > 350
        assert declared <= names, sorted(declared - names)
        words = set(re.findall(r"\bcu[A-Z]\w+", text))
        strange = {n for n in names - ours if re.sub(r"_pt[ds][sz]$", "", n) not in words}
        # What is not in this toolkit's header comes from a newer one: few names.
        assert len(strange) < 60, sorted(strange)


def test_cugetprocaddress_hands_out_our_own_symbols_by_version(scripts: Scripts) -> None:
    done = scripts.run(
        """
        phantom.install("absent")
        cuda = ctypes.CDLL("libcuda.so.1")

        def ask(name, version, flags=0):
            found, status = ctypes.c_void_p(), ctypes.c_int(-1)
            answer = cuda.cuGetProcAddress_v2(
                name.encode(), ctypes.byref(found), version, ctypes.c_uint64(flags),
                ctypes.byref(status))
            names = [n for n in known if found.value == known[n]]
            return [answer, status.value, *names]

        forms = ("cuInit", "cuCtxCreate", "cuCtxCreate_v2", "cuCtxCreate_v3", "cuCtxCreate_v4",
                 "cuMemAlloc", "cuMemAlloc_v2", "cuLaunchKernel", "cuLaunchKernel_ptsz")
        known = {n: ctypes.cast(getattr(cuda, n), ctypes.c_void_p).value for n in forms}
        assert ask("cuInit", 12000) == [0, 0, "cuInit"]
        assert ask("cuMemAlloc", 2000) == [0, 0, "cuMemAlloc"]
        assert ask("cuMemAlloc", 3020) == [0, 0, "cuMemAlloc_v2"]
        assert ask("cuCtxCreate", 11030) == [0, 0, "cuCtxCreate_v2"]
        assert ask("cuCtxCreate", 11040) == [0, 0, "cuCtxCreate_v3"]
        assert ask("cuCtxCreate", 12050) == [0, 0, "cuCtxCreate_v4"]
        assert ask("cuLaunchKernel", 12000, flags=1) == [0, 0, "cuLaunchKernel"]
        assert ask("cuLaunchKernel", 12000, flags=2) == [0, 0, "cuLaunchKernel_ptsz"]
        assert ask("cuMemAlloc_v2", 12000) == [0, 1], "suffixes are not part of a base name"
        assert ask("cuNoSuchThing", 12000) == [0, 1]
        assert ask("cuGreenCtxCreate", 11000) == [0, 2]
        assert ask("cuInit", 99000) == [1, -1]
        found = ctypes.c_void_p()
        assert cuda.cuGetProcAddress(b"cuNoSuchThing", ctypes.byref(found), 12000, 0) == 500
        call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint)
        assert call(known["cuInit"])(0) == 100
        """
    )
    assert done.status == 0, done.err
    assert done.only["entry"] == "cuInit"


def test_a_present_face_answers_questions(scripts: Scripts) -> None:
    done = scripts.run(
        """
        phantom.install("sm_100x2")
        cuda, n, m = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_int()
        size, free = ctypes.c_size_t(), ctypes.c_size_t()
        text, uuid = ctypes.create_string_buffer(64), ctypes.c_ubyte * 16
        one, two = uuid(), uuid()
        by = ctypes.byref
        assert cuda.cuDeviceGetCount(by(n)) == 3, "before cuInit, as the real driver"
        assert cuda.cuInit(0) == 0
        assert cuda.cuDeviceGetCount(by(n)) == 0 and n.value == 2
        assert cuda.cuDeviceGet(by(n), 1) == 0 and n.value == 1
        assert cuda.cuDeviceGet(by(n), 2) == 101
        assert cuda.cuDeviceGetName(text, 64, 0) == 0 and b"B200" in text.value
        assert cuda.cuDeviceGetAttribute(by(n), 75, 1) == 0 and n.value == 10
        assert cuda.cuDeviceGetAttribute(by(n), 76, 1) == 0 and n.value == 0
        assert cuda.cuDeviceGetAttribute(by(n), 16, 1) == 0 and n.value == 148
        assert cuda.cuDeviceTotalMem_v2(by(size), 0) == 0 and size.value > 100 << 30
        assert cuda.cuMemGetInfo_v2(by(free), by(size)) == 0 and 0 < free.value < size.value
        assert cuda.cuDeviceGetUuid_v2(one, 0) == cuda.cuDeviceGetUuid_v2(two, 1) == 0
        assert bytes(one) != bytes(two)
        assert cuda.cuDeviceGetPCIBusId(text, 64, 1) == 0 and text.value == b"0000:02:00.0"
        assert cuda.cuDeviceGetByPCIBusId(by(n), b"0000:02:00.0") == 0 and n.value == 1
        assert cuda.cuDevicePrimaryCtxGetState(0, by(m), by(n)) == 0 and n.value == 0
        context, current = ctypes.c_void_p(), ctypes.c_void_p(1)
        assert cuda.cuCtxGetCurrent(by(current)) == 0 and current.value is None
        assert cuda.cuDevicePrimaryCtxRetain(by(context), 1) == 0
        assert cuda.cuDevicePrimaryCtxGetState(1, by(m), by(n)) == 0 and n.value == 1
        assert cuda.cuCtxSetCurrent(context) == 0 and cuda.cuCtxGetDevice(by(n)) == 0
        assert n.value == 1
        assert cuda.cuCtxGetCurrent(by(current)) == 0 and current.value == context.value
        """
    )
    assert done.status == 0, done.err
    assert done.only["result"] == 0


def test_what_is_no_context_is_refused_and_the_current_one_stays(scripts: Scripts) -> None:
    done = scripts.run(
        """
        phantom.install("sm_90")
        cuda = ctypes.CDLL("libcuda.so.1")
        context, current = ctypes.c_void_p(), ctypes.c_void_p()
        assert cuda.cuInit(0) == 0
        assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
        assert cuda.cuCtxSetCurrent(context) == 0
        for handle in (1, 7, context.value - 4096, context.value + 4096, 2**64 - 8):
            handle = ctypes.c_void_p(handle)
            assert cuda.cuCtxSetCurrent(handle) == 201, handle
            assert cuda.cuCtxPushCurrent_v2(handle) == 201, handle
            assert cuda.cuCtxSynchronize() == 0
        assert cuda.cuCtxGetCurrent(ctypes.byref(current)) == 0
        assert current.value == context.value
        assert cuda.cuDevicePrimaryCtxRelease_v2(0) == 0
        assert cuda.cuDevicePrimaryCtxRelease_v2(0) == 201
        """
    )
    assert done.status == 0, done.err


def test_what_needs_a_gpu_is_refused_in_words_once(scripts: Scripts) -> None:
    done = scripts.run(
        """
        phantom.install("sm_90")
        cuda, pointer = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
        assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(16)) == 3
        cuda.cuInit(0)
        assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(16)) == 801
        assert cuda.cuLaunchKernel() == 801
        assert cuda.cuModuleLoadData() == 801
        assert cuda.cuStreamCreate() == 801
        """
    )
    assert done.status == 0, done.err
    assert done.err.count("pytest-cudafork:") == 1
    assert "cuMemAlloc_v2 was refused" in done.err
    assert "answers questions, it does not compute" in done.err


@pytest.mark.parametrize(("face", "answer"), [("absent", 100), ("sm_90", 3)])
@pytest.mark.parametrize("way", ["os.fork", "C fork", "bare clone"])
def test_children_and_grandchildren_of_a_touched_process_are_poisoned(
    scripts: Scripts, face: str, answer: int, way: str
) -> None:
    done = scripts.run(
        """
        witness = phantom.install(sys.argv[1])
        libc, cuda, number = ctypes.PyDLL(None), ctypes.PyDLL("libcuda.so.1"), ctypes.c_int()
        fork = {"os.fork": os.fork, "C fork": libc.fork,
                "bare clone": lambda: libc.syscall(57, 0) if os.uname().machine == "x86_64"
                else libc.syscall(220, 17, 0, 0, 0, 0)}[sys.argv[2]]

        def child(depth):
            pid = fork()
            if pid:
                assert os.waitpid(pid, 0)[1] == 0
                return
            line = [depth, witness.native.state(), witness.native.touch_count()]
            line += [cuda.cuInit(0), cuda.cuDeviceGetCount(ctypes.byref(number))]
            os.write(1, (" ".join(map(str, line)) + "\\n").encode())
            if depth == 1:
                child(2)
            os._exit(0)

        child(0)
        cuda.cuInit(0)
        child(1)
        """,
        face,
        way,
    )
    assert done.status == 0, done.err
    clean = 100 if face == "absent" else 0
    counted = 3 if face == "absent" else 0
    assert done.out.splitlines() == [
        f"0 0 0 {clean} {counted}",
        f"1 2 0 {answer} 3",
        f"2 2 0 {answer} 3",
    ]
    assert [t["poisoned"] for t in done.touches] == [False, False, True, True]
    assert [t["again"] for t in done.touches] == [False] * 4
    assert [t["result"] for t in done.touches] == [clean, clean, answer, answer]
    assert len({t["pid"] for t in done.touches}) == 4
