"""Whole sessions whose tests ask for GPUs, on GPUs that the phantom shows."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_cudafork.gpus.inventory import phantom_machine
from pytest_cudafork.gpus.locks import LockFolder
from tests.support import leaps
from tests.support.isolation import METHODS, is_gone
from tests.support.sessions import assert_no_crash, failure, needs_torch, outcomes, run_session

XDIST = ("-p", "xdist.plugin")
UUIDS = [gpu.uuid for gpu in phantom_machine("sm_90x2").gpus]


def run(
    pytester: pytest.Pytester, *args: str, face: str = "phantom:sm_90x2", visible: str | None = None
) -> pytest.RunResult:
    """Run the session under the phantom, with a temporary folder of its own."""
    temporary = pytester.path / "tmp"
    temporary.mkdir(exist_ok=True)
    env = {"TMPDIR": str(temporary), "PYTEST_CUDA_FORK_DEVICE": face}
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            env["CUDA_VISIBLE_DEVICES"] = visible
        result = run_session(pytester, "--cuda-fork-check=poison", "-v", "-rs", *args, env=env)
    assert_no_crash(result)
    assert not list(temporary.glob("*gpus*")), "the phantom's locks were left behind"
    return result


def skips(result: pytest.RunResult) -> list[str]:
    """Return the places and reasons of skipped tests."""
    lines = result.stdout.str().splitlines()
    return [line.removeprefix("SKIPPED [1] ") for line in lines if line.startswith("SKIPPED [")]


@pytest.mark.parametrize("method", ["auto", *METHODS])
def test_a_test_sees_its_gpus_and_no_other(pytester: pytest.Pytester, method: str) -> None:
    pytester.makepyfile(f"""
        import os
        import pytest

        pytestmark = pytest.mark.cuda_isolated(method={method!r})
        at_import = os.environ.get("CUDA_VISIBLE_DEVICES")

        @pytest.mark.gpus(1)
        def test_one():
            assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"
            assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"

        @pytest.mark.gpus(2)
        def test_two():
            assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"
            if {method!r} == "spawn":
                assert at_import == "0,1"

        def test_without():
            assert "CUDA_VISIBLE_DEVICES" not in os.environ
            assert "_CUDAFORK_GPU_LOCKS" not in os.environ
    """)
    run(pytester).assert_outcomes(passed=3)


def test_the_marker_alone_isolates(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import os
        import pytest

        parent = os.getpid()

        @pytest.mark.gpus(1)
        def test_one():
            assert os.getpid() != parent

        def test_after():
            assert os.getpid() == parent
            assert "CUDA_VISIBLE_DEVICES" not in os.environ
    """)
    run(pytester).assert_outcomes(passed=2)


@needs_torch
def test_torch_counts_the_gpus_of_the_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest

        @pytest.mark.spawn_only
        @pytest.mark.gpus(1)
        def test_one():
            import torch
            assert torch.cuda.device_count() == 1
    """)
    run(pytester, face="phantom:sm_90x4").assert_outcomes(passed=1)


def test_the_driver_and_what_a_test_starts_see_the_gpus_of_the_test(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile("""
        import subprocess, sys
        import pytest

        COUNT = (
            "import ctypes; n = ctypes.c_int(); cuda = ctypes.CDLL('libcuda.so.1'); cuda.cuInit(0);"
            "cuda.cuDeviceGetCount(ctypes.byref(n)); print(n.value)"
        )

        @pytest.mark.gpus(1)
        def test_one(capfd):
            exec(COUNT)
            subprocess.run([sys.executable, "-c", COUNT], check=True)
            assert capfd.readouterr().out.split() == ["1", "1"]

        @pytest.mark.gpus(2)
        def test_two(capfd):
            exec(COUNT)
            assert capfd.readouterr().out.split() == ["2"]
    """)
    run(pytester).assert_outcomes(passed=2)


def test_too_few_gpus_are_a_skip_at_the_test_with_the_reason(pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile("""
        import pytest

        @pytest.fixture(autouse=True)
        def never_with_too_few(request):
            assert "three" not in request.node.name

        @pytest.mark.gpus(99)
        def test_three_or_more():
            assert False

        @pytest.mark.gpus(2)
        def test_two():
            pass

        def test_without():
            pass
    """)
    result = run(pytester)
    result.assert_outcomes(passed=2, skipped=1)
    reason = "needs 99 GPUs; this session has 2 (the machine has 2)"
    assert skips(result) == [f"{path.name}:7: {reason}"]


def test_without_a_gpu_every_such_test_is_skipped(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest

        @pytest.mark.gpus(1)
        def test_one():
            assert False

        @pytest.mark.gpus(1)
        @pytest.mark.cuda_isolated(method="spawn")
        def test_spawned():
            assert False
    """)
    result = run(pytester, face="phantom")
    result.assert_outcomes(skipped=2)
    assert result.ret == 0
    assert all("needs 1 GPU; this machine has none" in line for line in skips(result))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("0", "@pytest.mark.gpus(0): n is a whole number of GPUs above 0"),
        ("-1", "@pytest.mark.gpus(-1): n is a whole number of GPUs above 0"),
        ("'2'", "@pytest.mark.gpus('2'): n is a whole number of GPUs above 0"),
        ("", "@pytest.mark.gpus takes one number of GPUs, and none is given"),
        ("1, 2", "@pytest.mark.gpus takes one number of GPUs, not 2 arguments"),
        ("1, many=True", "@pytest.mark.gpus does not take 'many'"),
    ],
)
def test_a_wrong_marker_is_an_error_of_that_test_alone(
    pytester: pytest.Pytester, arguments: str, message: str
) -> None:
    pytester.makepyfile(f"""
        import pytest

        @pytest.mark.gpus({arguments})
        def test_wrong():
            pass

        @pytest.mark.gpus(1)
        def test_right():
            pass
    """)
    result = run(pytester)
    result.assert_outcomes(passed=1, errors=1)
    assert message in failure(result, "test_wrong")


@pytest.mark.parametrize(
    ("option", "visible", "seen"),
    [
        ("auto", None, "0,1"),
        ("1", None, "0"),
        ("1,", None, "1"),
        ("9,1", None, "1"),
        (UUIDS[1], None, "1"),
        ("auto", "1", "1"),
        ("auto", UUIDS[1], "1"),
        ("auto", "1,0", "1,0"),
        ("0,", "1", ""),
        ("0", None, ""),
        ("auto", "", ""),
    ],
)
def test_the_session_gives_only_what_it_was_given(
    pytester: pytest.Pytester, option: str, visible: str | None, seen: str
) -> None:
    n = len(seen.split(",")) if seen else 1
    path = pytester.makepyfile(f"""
        import os
        import pytest

        @pytest.mark.gpus({n})
        def test_all():
            assert os.environ["CUDA_VISIBLE_DEVICES"] == {seen!r}

        @pytest.mark.gpus({n + 1})
        def test_more():
            pass
    """)
    result = run(pytester, f"--cuda-fork-gpus={option}", visible=visible)
    result.assert_outcomes(passed=1 if seen else 0, skipped=1 if seen else 2)
    have = f"this session has {n if seen else 0} (the machine has 2"
    assert skips(result)[-1].startswith(f"{path.name}:8: needs {n + 1} GPUs; {have}")


def test_a_wrong_option_is_a_usage_error(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_nothing(): pass")
    result = run_session(pytester, "--cuda-fork-gpus=first")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--cuda-fork-gpus: 'first' does not say which GPUs to use*"])


def test_gpus_are_given_back_however_a_test_ends(pytester: pytest.Pytester) -> None:
    folder = pytester.path / "leaps"
    pytester.makeconftest(leaps.conftest(folder))
    pytester.makepyfile(leaping=leaps.module(folder))
    pytester.makepyfile(f"""
        import os
        import signal
        import pytest
        from leaping import time_is_up

        pytestmark = pytest.mark.gpus(2, wait=120)

        def test_fails(): assert False
        def test_is_skipped(): pytest.skip("for a reason")
        def test_exits(): os._exit(3)
        def test_crashes(): os.kill(os.getpid(), signal.SIGSEGV)

        @pytest.mark.cuda_isolated(timeout={leaps.LIMIT})
        def test_hangs():
            time_is_up()
            while True: pass

        @pytest.fixture
        def broken():
            yield
            raise RuntimeError

        def test_does_not_tear_down(broken): pass
        def test_passes(): pass
    """)
    result = run(pytester)
    result.assert_outcomes(passed=2, failed=4, skipped=1, errors=1)
    assert outcomes(result)["test_passes"] == "PASSED"


def test_a_test_that_is_skipped_anyway_waits_for_nothing(pytester: pytest.Pytester) -> None:
    hold = LockFolder(str(pytester.path / "locks")).acquire(
        UUIDS, 2, share=False, wait=1, test="the other session"
    )
    pytester.makeconftest(LOCK_HERE.format(path=str(pytester.path / "locks")))
    pytester.makepyfile("""
        import pytest

        @pytest.mark.gpus(1)
        @pytest.mark.skip(reason="not today")
        def test_skipped(): pass

        @pytest.mark.gpus(1)
        @pytest.mark.skipif(True, reason="never")
        def test_skipped_for_a_reason(): pass
    """)
    result = run(pytester)
    hold.release()
    result.assert_outcomes(skipped=2)


LOCK_HERE = """
from pytest_cudafork.gpus import lending
lending.lock_path = lambda config: {path!r}
"""


def test_a_test_that_waited_too_long_fails_and_says_for_whom(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(LOCK_HERE.format(path=str(pytester.path / "locks")))
    pytester.makepyfile("""
        import pytest

        @pytest.mark.gpus(1, wait=0.2)
        def test_waits(): pass

        @pytest.mark.gpus(1, share=True, wait=0.2)
        def test_shares(): pass
    """)
    folder = LockFolder(str(pytester.path / "locks"))
    shared = folder.acquire(UUIDS, 2, share=True, wait=1, test="other.py::test_other")
    result = run(pytester)
    shared.release()
    result.assert_outcomes(passed=1, errors=1)
    text = failure(result, "test_waits")
    assert "1 of 2 GPUs were not free within 0.2 s" in text
    assert f"{UUIDS[0]} is held by process {os.getpid()} for other.py::test_other" in text


@pytest.mark.parametrize("face", ["phantom:sm_90", "phantom:sm_90x2"])
def test_workers_never_use_a_gpu_together(pytester: pytest.Pytester, face: str) -> None:
    pytest.importorskip("xdist")
    log = pytester.path / "log"
    pytester.makepyfile(f"""
        import json, os, time
        import pytest

        def log(what):
            fd = os.open({str(log)!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            line = json.dumps([what, os.environ["CUDA_VISIBLE_DEVICES"]])
            os.write(fd, (line + chr(10)).encode())

        @pytest.mark.gpus(1)
        @pytest.mark.parametrize("number", range(8))
        def test_uses(number):
            log("in")
            time.sleep(0.05)
            log("out")

        @pytest.mark.skipif({face == "phantom:sm_90"}, reason="has one")
        @pytest.mark.gpus(2)
        def test_uses_both():
            log("in")
            log("out")
    """)
    result = run(pytester, *XDIST, "-n", "2", face=face)
    result.assert_outcomes(passed=8 + (face != "phantom:sm_90"), skipped=face == "phantom:sm_90")
    used: set[str] = set()
    for what, gpus in map(json.loads, log.read_text().splitlines()):
        mine = set(gpus.split(","))
        if what == "in":
            assert not used & mine
            used |= mine
        else:
            used -= mine
    assert used == set()


def test_tests_that_allow_it_share_a_gpu(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    pytester.makepyfile("""
        import os, pathlib, time
        import pytest

        def meet(mine, other):
            here = pathlib.Path(__file__).parent
            (here / mine).touch()
            limit = time.monotonic() + 120
            while not (here / other).exists():
                assert time.monotonic() < limit, "alone on the GPU"
                time.sleep(0.02)
            assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"

        @pytest.mark.gpus(1, share=True)
        def test_here(): meet("a", "b")

        @pytest.mark.gpus(1, share=True)
        def test_there(): meet("b", "a")
    """)
    run(pytester, *XDIST, "-n", "2", face="phantom:sm_90").assert_outcomes(passed=2)


def test_the_gpus_of_a_killed_worker_are_free_again(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    pytester.makepyfile("""
        import os, signal
        import pytest

        @pytest.mark.gpus(2)
        @pytest.mark.cuda_isolated(method="fork")
        def test_kills_its_worker():
            os.kill(os.getppid(), signal.SIGKILL)
            signal.pause()

        @pytest.mark.gpus(2, wait=120)
        @pytest.mark.parametrize("number", range(3))
        def test_after(number): pass
    """)
    result = run(pytester, *XDIST, "-n", "2", "--max-worker-restart=2")
    result.assert_outcomes(passed=3, failed=1)
    assert "crashed while running" in result.stdout.str()


def test_a_session_that_a_test_starts_locks_among_its_own(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(f"""
        import os
        import pytest
        from pytest_cudafork.gpus.locks import LockFolder, user_folder

        @pytest.mark.gpus(2)
        def test_starts_a_session():
            folder = LockFolder(user_folder())
            open("path", "w").write(folder.path)
            folder.acquire({UUIDS!r}, 2, share=False, wait=0, test="inner")

        def test_after():
            path = open("path").read()
            assert not os.path.exists(path)
            assert user_folder() != path
    """)
    run(pytester).assert_outcomes(passed=2)


def test_tests_that_share_a_process_share_its_gpus(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import os
        import pytest

        @pytest.fixture(scope="module")
        def process():
            return os.getpid()

        shared = pytest.mark.cuda_isolated(scope="module")

        @pytest.mark.parametrize("number", range(3))
        @pytest.mark.gpus(1, wait=120)
        @shared
        def test_of_one(number, process):
            assert os.getpid() == process
            assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"

        @pytest.mark.parametrize("number", range(2))
        @pytest.mark.gpus(2, wait=120)
        @shared
        def test_of_two(number):
            assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"

        @shared
        def test_of_none():
            assert "CUDA_VISIBLE_DEVICES" not in os.environ

        @pytest.mark.gpus(1, share=True, wait=120)
        @shared
        def test_that_shares(): pass

        @pytest.mark.gpus(2, wait=120)
        def test_alone(): pass
    """)
    run(pytester).assert_outcomes(passed=8)


def test_a_group_that_is_cut_short_gives_its_gpus_back(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import os, signal
        import pytest

        pytestmark = [pytest.mark.gpus(2, wait=120), pytest.mark.cuda_isolated(scope="module")]

        def test_crashes(): os.kill(os.getpid(), signal.SIGKILL)
        def test_after(): pass
        def test_stops(): pytest.exit("enough", returncode=7)
        def test_never(): pass
    """)
    result = run(pytester)
    assert result.ret == 7
    assert [one.split()[0] for one in outcomes(result).values()] == ["FAILED", "PASSED"]


LEFTOVER = """
import os, subprocess
import pytest
from pytest_cudafork.gpus import inventory, lending, memory
from pytest_cudafork.gpus.nvml import DeviceMemory

machine = inventory.Machine((inventory.Gpu(0, "GPU-0a"),))
lending._face = lambda config: ""
lending.machine_of = lambda config: machine
memory._SETTLE_SECONDS = 0.1

def measure(gpus):
    if not os.path.exists("pid"):
        return {"GPU-0a": DeviceMemory(0, {1: 5})}
    return {"GPU-0a": DeviceMemory(9, {1: 5, int(open("pid").read()): 674 << 20})}

memory.measure = measure
"""


@pytest.fixture
def survivor(pytester: pytest.Pytester) -> Iterator[Path]:
    """A session whose first test leaves a process behind, that is said to hold device memory."""
    pytester.makeconftest(LEFTOVER)
    path = pytester.makepyfile("""
        import subprocess
        import pytest

        @pytest.mark.gpus(1)
        def test_leaves():
            process = subprocess.Popen(["sleep", "600"], start_new_session=True)
            # the kernel lets the parent go on a moment before it lays out what was started
            while not open(f"/proc/{process.pid}/cmdline").read():
                assert process.poll() is None
            with open("pid", "w") as file:
                file.write(str(process.pid))

        @pytest.mark.gpus(1)
        def test_innocent(): pass
    """)
    yield path
    for file in pytester.path.glob("pid*"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(file.read_text()), signal.SIGKILL)


@pytest.mark.parametrize("workers", [(), (*XDIST, "-n", "1")], ids=["here", "worker"])
def test_memory_that_a_test_left_is_a_warning_of_that_test(
    pytester: pytest.Pytester, survivor: Path, workers: tuple[str, ...]
) -> None:
    result = run_session(pytester, *workers, env={"TMPDIR": str(pytester.path)})
    result.assert_outcomes(passed=2, warnings=1)
    pid = (pytester.path / "pid").read_text()
    text = result.stdout.str()
    assert f"process {pid} (sleep 600) holds 674 MiB on GPU 0" in text
    assert f"{survivor.name}::test_leaves" in text
    assert is_gone(int(pid)), "what the test left was to be ended"
    assert "test_innocent" not in text


@pytest.mark.usefixtures("survivor")
def test_that_warning_can_be_an_error_or_nothing(pytester: pytest.Pytester) -> None:
    env = {"TMPDIR": str(pytester.path)}
    category = "pytest_cudafork.CudaForkWarning"
    result = run_session(pytester, "-W", f"error::{category}", env=env)
    result.assert_outcomes(passed=2, errors=1)
    assert_no_crash(result)
    assert "holds 674 MiB on GPU 0" in failure(result, "test_leaves")
    (pytester.path / "pid").rename(pytester.path / "pid-before")
    result = run_session(pytester, "-W", f"ignore::{category}", env=env)
    result.assert_outcomes(passed=2)
    assert "674 MiB" not in result.stdout.str()


NOT_ISOLATED = ("--pdb", "--pdbcls=quiet:Quiet")


@pytest.fixture
def debugger(pytester: pytest.Pytester) -> None:
    """A debugger that asks nothing; with it no test is isolated."""
    pytester.makepyfile(
        quiet="""
        import pdb

        class Quiet(pdb.Pdb):
            def interaction(self, *args, **kwargs): pass
    """
    )


TOUCHES = """
import ctypes, os
import pytest

parent = os.getpid()

def touch():
    ctypes.CDLL("libcuda.so.1").cuInit(0)

def seen():
    assert os.getpid() == parent
    return os.environ.get("CUDA_VISIBLE_DEVICES")
"""


@pytest.mark.usefixtures("debugger")
def test_without_isolation_this_process_sees_the_gpus_for_the_length_of_the_test(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        TOUCHES
        + """
@pytest.fixture
def during_setup():
    return seen()

@pytest.mark.gpus(1)
def test_one(during_setup):
    assert during_setup == seen() == "0"
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"

@pytest.mark.gpus(2)
def test_fails():
    assert seen() == "0,1"
    raise RuntimeError

@pytest.mark.gpus(3)
def test_three(): pass

def test_after():
    assert seen() is None
    assert not {"CUDA_DEVICE_ORDER", "_CUDAFORK_GPU_LOCKS"} & set(os.environ)
"""
    )
    result = run(pytester, *NOT_ISOLATED)
    result.assert_outcomes(passed=2, failed=1, skipped=1)
    assert outcomes(result)["test_fails"] == "FAILED"


@pytest.mark.usefixtures("debugger")
def test_once_cuda_is_initialized_only_the_same_gpus_can_be_had_without_isolation(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        TOUCHES
        + """
@pytest.mark.gpus(1)
@pytest.mark.parametrize("number", range(3))
def test_one(number):
    assert seen() == "0"
    touch()

@pytest.mark.gpus(2)
def test_two(): assert False, "it would see one GPU"
"""
    )
    result = run(pytester, *NOT_ISOLATED)
    result.assert_outcomes(passed=3, errors=1)
    text = result.stdout.str()  # a failure goes to the debugger
    assert "where it shows GPUs 0 for good; the test may see 0,1 only" in text
    assert "Run it isolated (without --pdb, --trace and --cuda-fork-isolate=none)" in text


@pytest.mark.usefixtures("debugger")
def test_a_test_that_needs_all_gpus_runs_where_cuda_shows_them_all(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        TOUCHES
        + """
touch()

@pytest.mark.gpus(2)
def test_two(): pass

@pytest.mark.gpus(1)
def test_one(): assert False, "it would see two GPUs"
"""
    )
    result = run(pytester, *NOT_ISOLATED)
    result.assert_outcomes(passed=1, errors=1)
    assert "shows GPUs 0,1 for good; the test may see 0 only" in result.stdout.str()
