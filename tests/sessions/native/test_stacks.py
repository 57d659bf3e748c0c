"""The Python stack of a touch: right line, with and without the GIL, on every Python."""

from __future__ import annotations

import inspect
import json
import os
from pathlib import Path

import pytest

from pytest_cudafork.observe.driver import native_libs
from tests.support.native import VERSIONS, Scripts, compile_c, interpreter, needs_libraries

pytestmark = needs_libraries


@pytest.fixture
def scripts(tmp_path: Path) -> Scripts:
    return Scripts(tmp_path)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", ["PyDLL", "CDLL"])
def test_the_stack_names_the_line_with_and_without_the_gil(
    scripts: Scripts, version: str, kind: str
) -> None:
    done = scripts.run(
        """
        phantom.install("absent")
        cuda = getattr(ctypes, sys.argv[1])("libcuda.so.1")

        class Body:
            answer = cuda.cuInit(0)  # in a class body

        def function():
            cuda.cuInit(0)  # in a function

        function()  # calls it
        threading.Thread(target=lambda: cuda.cuInit(0)).start()  # in a thread
        """,
        kind,
        python=interpreter(version),
    )
    assert done.status == 0, done.err
    body, function, thread = done.touches
    assert {t["gil"] for t in done.touches} == {"held" if kind == "PyDLL" else "dumped"}
    file = str(scripts.file)
    assert [frame[:3] for frame in body["stack"][:1]] == [
        [file, scripts.line_of("# in a class body"), "Body"]
    ]
    assert [frame[:3] for frame in function["stack"]] == [
        [file, scripts.line_of("# in a function"), "function"],
        [file, scripts.line_of("# calls it"), "<module>"],
    ]
    assert thread["stack"][0][:3] == [file, scripts.line_of("# in a thread"), "<lambda>"]
    assert thread["tid"] != thread["pid"]
    flags = [body["stack"][0][3], function["stack"][0][3]]
    if kind == "PyDLL":
        assert [f & inspect.CO_OPTIMIZED for f in flags] == [0, inspect.CO_OPTIMIZED]
    else:
        assert flags == [-1, -1]


def test_names_are_qualified_where_python_has_them(scripts: Scripts) -> None:
    done = scripts.run(
        """
        phantom.install("absent")
        cuda = ctypes.PyDLL("libcuda.so.1")
        class Outer:
            class Inner:
                def method(self):
                    return cuda.cuInit(0)
        Outer.Inner().method()
        """,
        python=interpreter("3.11"),
    )
    assert done.only["stack"][0][2] == "Outer.Inner.method"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", ["PyDLL", "CDLL"])
def test_paths_with_any_character_come_through(scripts: Scripts, version: str, kind: str) -> None:
    folder = scripts.folder / 'quote" back\\slash, line 3 in é 漢 🎉'
    folder.mkdir()
    raw = os.fsencode(folder) + b"/not-utf8-\xff.py"
    with open(raw, "w", encoding="utf-8") as file:
        file.write("import ctypes, sys\ngetattr(ctypes, sys.argv[1])('libcuda.so.1').cuInit(0)\n")
    done = scripts.run(
        """
        import runpy
        phantom.install("absent")
        runpy.run_path(os.fsdecode(bytes.fromhex(sys.argv[2])))
        """,
        kind,
        raw.hex(),
        python=interpreter(version),
    )
    assert done.status == 0, done.err
    assert [os.fsencode(done.only["stack"][0][0]), done.only["stack"][0][1]] == [raw, 2]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_pending_exception_and_the_references_survive_the_walk(
    scripts: Scripts, version: str
) -> None:
    extension = scripts.folder / "pending.so"
    compile_c(
        """
        #include <dlfcn.h>
        int touch_with_error(void *type)
        {
            void (*set)(void *, const char *) = (void (*)(void *, const char *))
                dlsym(RTLD_DEFAULT, "PyErr_SetString");
            int (*init)(unsigned) = (int (*)(unsigned))dlsym(RTLD_DEFAULT, "cuInit");
            set(type, "set before the touch");
            return init(0);
        }
        """,
        extension,
        "-shared",
        "-fPIC",
    )
    done = scripts.run(
        """
        import gc, weakref
        phantom.install("absent")
        touch = ctypes.PyDLL(sys.argv[1]).touch_with_error
        touch.argtypes = [ctypes.py_object]

        class Local:
            pass

        def call():
            local = Local()
            seen.append(weakref.ref(local))
            try:
                touch(KeyError)
            except KeyError as error:
                assert error.args == ("set before the touch",)
                return True

        seen = []
        code = sys.getrefcount(call.__code__)
        gc.disable()
        for _ in range(50):
            os.environ["PYTEST_CURRENT_TEST"] = str(_)  # else only the first is walked and written
            assert call()
        assert all(ref() is None for ref in seen), "no frame outlives its call"
        assert sys.getrefcount(call.__code__) <= code + 1
        assert not gc.isenabled(), "left as it was"
        gc.enable()
        assert call() and gc.isenabled()
        """,
        str(extension),
        python=interpreter(version),
    )
    assert done.status == 0, done.err
    assert len(done.touches) == 51  # the last from another line


@pytest.mark.parametrize("version", VERSIONS)
def test_many_threads_at_once_each_have_their_own_stack(scripts: Scripts, version: str) -> None:
    done = scripts.run(
        """
        phantom.install("absent")
        held, released = ctypes.PyDLL("libcuda.so.1"), ctypes.CDLL("libcuda.so.1")
        barrier = threading.Barrier(16)
        for index in range(16):
            cuda = "held" if index % 2 else "released"
            exec(f"def touch_{index}():\\n  barrier.wait(); {cuda}.cuInit(0)")
        threads = [threading.Thread(target=globals()[f"touch_{i}"]) for i in range(16)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        """,
        python=interpreter(version),
    )
    assert done.status == 0, done.err
    assert sorted(t["stack"][0][2] for t in done.touches) == sorted(f"touch_{i}" for i in range(16))
    assert len({t["id"] for t in done.touches}) == 16
    assert sum(not t["again"] for t in done.touches) == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_a_child_dumps_into_a_file_of_its_own(scripts: Scripts, version: str) -> None:
    done = scripts.run(
        """
        phantom.install("absent")
        cuda = ctypes.CDLL("libcuda.so.1")
        children = []
        for index in range(8):
            pid = os.fork()
            if pid == 0:
                exec(f"def child_{index}(): cuda.cuInit(0)\\nfor _ in range(20): child_{index}()")
                os._exit(0)
            children.append(pid)
        for pid in children: os.waitpid(pid, 0)
        """,
        python=interpreter(version),
    )
    assert done.status == 0, done.err
    names = sorted(t["stack"][0][2] for t in done.touches)
    assert names == [f"child_{i}" for i in range(8)]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_descriptor_that_was_reused_is_not_written_to(scripts: Scripts, version: str) -> None:
    done = scripts.run(
        """
        phantom.install("absent")
        cuda = ctypes.CDLL("libcuda.so.1")
        os.closerange(3, 64)  # as a daemon does
        files = [open(f"file{i}", "w+b", buffering=0) for i in range(12)]
        for file in files: file.write(b"precious")
        cuda.cuInit(0)
        assert {(file.seek(0), file.read())[1] for file in files} == {b"precious"}
        """,
        python=interpreter(version),
    )
    assert done.status == 0, done.err
    assert done.only["gil"] in {"none", "dumped"}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_program_that_has_closed_its_files_has_a_stack_and_they_stay_closed(
    scripts: Scripts, version: str
) -> None:
    done = scripts.run(
        """
        phantom.install("absent")
        cuda = ctypes.CDLL("libcuda.so.1")

        def daemon():
            os.closerange(3, 4096)
            cuda.cuInit(0)  # with nothing open

        daemon()
        for fd in range(3, 4096):
            try:
                os.fstat(fd)
            except OSError:
                continue
            raise AssertionError(fd)
        """,
        python=interpreter(version),
    )
    assert done.status == 0, done.err
    assert done.only["gil"] == "dumped"
    assert done.only["stack"][0][1:3] == [scripts.line_of("# with nothing open"), "daemon"]


@pytest.mark.parametrize("version", VERSIONS)
def test_taken_back_arming_leaves_a_touch_alive(scripts: Scripts, version: str) -> None:
    done = scripts.run(
        """
        import signal
        witness = phantom.install("absent")
        inner = witness.native.arm()
        inner()
        cuda = ctypes.CDLL("libcuda.so.1")
        cuda.cuInit(0)  # the outer arming holds again
        witness.undo()
        cuda.cuInit(0)
        free = [n for n in range(signal.SIGRTMIN, signal.SIGRTMAX + 1)]
        assert all(signal.getsignal(n) == signal.SIG_DFL for n in free)
        """,
        python=interpreter(version),
    )
    assert done.status == 0, done.err
    assert done.touches[0]["gil"] == "dumped"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_thread_that_blocks_all_signals_still_has_a_stack(scripts: Scripts, version: str) -> None:
    done = scripts.run(
        """
        import signal
        phantom.install("absent")
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        ctypes.CDLL("libcuda.so.1").cuInit(0)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        assert max(mask) >= signal.SIGRTMAX - 2, "the mask is as it was"
        """,
        python=interpreter(version),
    )
    assert done.status == 0, done.err
    assert done.only["gil"] == "dumped"


def test_a_thread_python_has_never_seen_is_recorded_without_a_stack(scripts: Scripts) -> None:
    stranger = scripts.folder / "stranger.so"
    compile_c(
        """
        #include <dlfcn.h>
        #include <pthread.h>
        static void *run(void *init) { ((int (*)(unsigned))init)(0); return 0; }
        int touch_in_thread(void)
        {
            pthread_t thread;
            pthread_create(&thread, 0, run, dlsym(RTLD_DEFAULT, "cuInit"));
            return pthread_join(thread, 0);
        }
        """,
        stranger,
        "-shared",
        "-fPIC",
    )
    done = scripts.run(
        """
        phantom.install("absent")
        ctypes.PyDLL(sys.argv[1]).touch_in_thread()  # holds the GIL, and waits for the thread
        """,
        str(stranger),
    )
    assert done.status == 0, done.err
    assert (done.only["gil"], done.only["stack"]) == ("none", [])
    assert done.only["library"] == str(stranger)


def test_a_subinterpreter_does_not_make_the_gil_look_held(scripts: Scripts) -> None:
    done = scripts.run(
        """
        try:
            import _xxsubinterpreters as interpreters
        except ImportError:
            import _interpreters as interpreters
        phantom.install("absent")
        interpreters.create()
        ctypes.CDLL("libcuda.so.1").cuInit(0)
        """,
    )
    assert done.only["gil"] == "dumped", done.err


def test_a_very_deep_stack_is_one_whole_record(scripts: Scripts) -> None:
    done = scripts.run(
        """
        phantom.install("absent")
        cuda = ctypes.PyDLL("libcuda.so.1")
        sys.setrecursionlimit(5000)
        def down(n):
            return down(n - 1) if n else cuda.cuInit(0)
        down(3000)
        """
    )
    assert done.status == 0, done.err
    assert len(done.only["stack"]) == 1024
    assert json.dumps(done.only)


def test_arming_needs_a_signal_with_a_handler(scripts: Scripts) -> None:
    done = scripts.run(
        """
        import signal
        library = phantom.install("absent").native.library
        fd = os.memfd_create("x")
        assert library.cudafork_arm(signal.SIGUSR2, fd) == -1, "would end the process"
        assert library.cudafork_arm(signal.SIGUSR2, 900) == -1, "no descriptor"
        """
    )
    assert done.status == 0, done.err


def test_the_libraries_use_no_python_header() -> None:
    folder = Path(native_libs.__file__).parent / "native"
    assert not [p.name for p in folder.glob("*.[ch]") if "Python.h" in p.read_text()]
