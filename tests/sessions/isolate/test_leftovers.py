"""Nothing of an isolated test is left, however it and its descendants end."""

from __future__ import annotations

import os
import re
from textwrap import dedent

import pytest

from tests.support.death import METHODS, headline, run_deaths
from tests.support.isolation import is_gone
from tests.support.sessions import needs_torch

pytestmark = pytest.mark.fresh_children("children and descriptors of a session are counted")

DESCENDANTS = """
from multiprocessing import shared_memory

def plain():
    note(subprocess.Popen(["sleep", "1000"]).pid)
def session_of_its_own():
    note(subprocess.Popen(["sleep", "1000"], start_new_session=True, env={}).pid)
def ignores_sigterm():
    child = subprocess.Popen(["sh", "-c", "trap '' TERM INT HUP; echo up; sleep 1000 & wait"],
                             stdout=subprocess.PIPE)
    child.stdout.readline()
    note(child.pid)
def holds_stdout():
    note(subprocess.Popen(["sleep", "1000"], stdout=OUT, stderr=OUT).pid)
def daemon():
    # as daemons do: fork twice, a session of its own, no descriptor left
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(writing, str(os.getpid()).encode())
            os.closerange(0, 4096)
            time.sleep(1000)
        os._exit(0)
    os.wait()
    note(int(os.read(reading, 20)))
def shared():
    memory = shared_memory.SharedMemory(create=True, size=4096)
    with open("SHM", "a") as file: file.write(memory.name.lstrip("/") + "\\n")
    globals().setdefault("keep", []).append(memory)
def temporary():
    import tempfile
    keep_file = tempfile.NamedTemporaryFile()
    globals().setdefault("keep", []).append(keep_file)
WHAT = [plain, session_of_its_own, ignores_sigterm, holds_stdout, daemon, shared]
OUT = int(os.environ["REAL_OUT"])

@pytest.mark.parametrize("what", WHAT, ids=lambda f: f.__name__)
@pytest.mark.parametrize("end", ["passes", "is_killed", "crashes", "hangs"])
def test_leaves(what, end):
    what()
    if end == "is_killed": kill_self()
    if end == "crashes": os.abort()
    if end == "hangs":
        time_is_up()
        time.sleep(1000)
def test_last(): pass
"""

KINDS = (
    "plain", "session_of_its_own", "ignores_sigterm", "holds_stdout", "daemon", "shared",
)  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_no_process_and_no_shared_memory_is_left(
    pytester: pytest.Pytester, method: str, capfd: pytest.CaptureFixture[str]
) -> None:
    body = DESCENDANTS.replace("SHM", str(pytester.path / "shm"))
    args = []
    if method == "spawn":
        pytest.importorskip("xdist")
        args = ["-p", "xdist.plugin", "-n", "3"]
    # the pipe through which this test reads the session: whoever holds it keeps the test waiting
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REAL_OUT", "1")
        result = run_deaths(pytester, method, body, *args)
    for kind in KINDS:
        assert "SIGKILL in call" in headline(result, f"test_leaves[is_killed-{kind}]")
        assert "SIGABRT in call" in headline(result, f"test_leaves[crashes-{kind}]")
        assert "time limit of" in headline(result, f"test_leaves[hangs-{kind}]")
    passed = len(KINDS) + 1
    assert result.parseoutcomes() | {"warnings": 0} == {
        "failed": 3 * len(KINDS),
        "passed": passed,
        "warnings": 0,
    }


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_daemon_of_a_test_that_became_another_user_is_not_left(
    pytester: pytest.Pytester, method: str
) -> None:
    body = """
    def test_drops():
        reading, writing = os.pipe()
        os.setgid(65534)
        os.setuid(65534)
        daemon = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        raise Exception(f"started {daemon.pid}.")
    """
    result = run_deaths(pytester, method, dedent(body))
    result.assert_outcomes(failed=1)
    (started,) = re.findall(r"^E .*started (\d+)\.", result.stdout.str(), re.MULTILINE)
    assert is_gone(int(started))


@pytest.mark.parametrize("method", METHODS)
def test_temporary_folders_that_a_test_forgets_are_not_left_and_those_of_its_module_stay(
    pytester: pytest.Pytester, method: str
) -> None:
    body = """
    import tempfile
    def folder():
        return tempfile.TemporaryDirectory(dir=os.environ["FOLDERS"])
    keep = [folder()]
    @pytest.mark.parametrize("number", [1, 2])
    def test_forgets(number):
        keep.append(folder())
        assert os.path.isdir(keep[0].name)
    """
    folders = pytester.mkdir("folders")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FOLDERS", str(folders))
        result = run_deaths(pytester, method, dedent(body))
    result.assert_outcomes(passed=2)
    assert not list(folders.iterdir())


@pytest.mark.parametrize("method", METHODS)
def test_records_that_a_handler_of_a_test_keeps_are_written(
    pytester: pytest.Pytester, method: str
) -> None:
    body = """
    import logging.handlers
    def test_logs():
        target = logging.FileHandler("log")
        handler = logging.handlers.MemoryHandler(100, target=target)
        logging.getLogger("of the test").addHandler(handler)
        logging.getLogger("of the test").warning("kept")
    """
    run_deaths(pytester, method, dedent(body)).assert_outcomes(passed=1)
    assert (pytester.path / "log").read_text() == "kept\n"


@needs_torch
@pytest.mark.parametrize("strategy", ["file_system", "file_descriptor"])
def test_the_shared_tensors_of_torch_are_not_left(pytester: pytest.Pytester, strategy: str) -> None:
    body = f"""
    import torch, torch.multiprocessing
    torch.multiprocessing.set_sharing_strategy({strategy!r})
    @pytest.mark.parametrize("end", ["passes", "dies"])
    def test_shares(end):
        note(os.getpid())
        tensor = torch.ones(1000).share_memory_()
        storage = tensor.untyped_storage()
        shared = storage._share_filename_cpu_() if {strategy!r} == "file_system" else None
        if shared:
            with open("SHM", "a") as file: file.write(shared[1].decode().lstrip("/") + "\\n")
            assert os.path.exists("/dev/shm" + shared[1].decode())
        if end == "dies": kill_self()
    """.replace("SHM", str(pytester.path / "shm"))
    result = run_deaths(pytester, "forkserver", dedent(body))
    result.assert_outcomes(passed=1, failed=1)
    assert "SIGKILL in call" in headline(result, "test_shares[dies]")
