"""Real scripts: what they did is told, whatever they did."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_cudafork import ScriptTimeout, isolated_env, run_script
from pytest_cudafork.errors import CudaForkError, CudaForkWarning, PoisonedTouchError
from pytest_cudafork.process.descendants.caretaker_client import Caretaker
from pytest_cudafork.programs.run_script import ScriptRunner
from pytest_cudafork.settings.environment import COMMON_METHOD, VLLM_METHOD
from tests.support.isolation import lives
from tests.support.leaping_clock import LIMIT, leap_when

FORKS_AFTER_A_TOUCH = """\
import ctypes
import multiprocessing
import sys


def work():
    ctypes.CDLL("libcuda.so.1").cuInit(0)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        multiprocessing.set_start_method(sys.argv[1])
    work()
    process = multiprocessing.get_context(sys.argv[2]).Process(target=work)
    process.start()
    process.join()
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(text: str, name: str = "post.py") -> str:
    """Write a script and return its path."""
    Path(name).write_text(text)
    return name


def test_a_fork_after_a_touch_is_told_with_both_lines() -> None:
    script = written(FORKS_AFTER_A_TOUCH)
    with pytest.raises(CudaForkError) as caught:
        run_script(script, "spawn", "fork")
    first = str(caught.value).split("\n")[0]
    assert first.startswith("fork refused at post.py:15: CUDA was initialized at post.py:7")
    result = run_script(script, "spawn", "fork", allow_findings=True)
    assert result.exitcode == 1
    assert [touch.where for touch in result.touches] == [f"{Path.cwd()}/post.py:7"]
    assert [(fork.place, fork.verdict) for fork in result.forks] == [("post.py:15", "guarded")]
    assert [(start.place, start.method) for start in result.starts] == [("post.py:15", "fork")]
    # what the script chose is one thing, what it did another
    assert result.start_method.method == "spawn"
    assert "post.py:12" in result.start_method.why


def test_the_same_with_spawn_is_right() -> None:
    result = run_script(written(FORKS_AFTER_A_TOUCH), "fork", "spawn").check()
    assert [start.method for start in result.starts] == ["spawn"]
    assert len({touch.pid for touch in result.touches}) == 2
    assert result.forks == ()
    assert len(result.deeds.processes) >= 2


def test_the_environment_alone_makes_no_script_obey() -> None:
    """What the report's fix sets: Python's own multiprocessing heeds none of it."""
    script = written(
        "import multiprocessing as m, os\n"
        "if __name__ == '__main__':\n"
        "    p = m.Process(target=print); p.start(); p.join()\n"
        f"    print(os.environ['{VLLM_METHOD}'], os.environ['{COMMON_METHOD}'])\n"
    )
    other = "spawn" if sys.version_info < (3, 14) else "fork"
    result = run_script(script, method=other).check()
    assert result.stdout.split() == [other, other]
    assert [start.method for start in result.starts] != [other]
    assert "which multiprocessing does not read" in result.start_method.why
    assert result.environment[VLLM_METHOD] == (os.environ.get(VLLM_METHOD), other)


def test_arguments_input_folder_and_variables_reach_it(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("A", raising=False)
    (here / "work").mkdir()
    script = written(
        "import os, sys; print(sys.argv[1:], sys.stdin.read(), os.getcwd(), os.environ['A'])",
        "work/post.py",
    )
    result = run_script(
        Path("post.py"), "a", 1, stdin="text", cwd="work", env={"A": "b", "PATH": None}
    )
    assert script == "work/post.py"
    assert result.stdout == f"['a', '1'] text {here}/work b\n"
    assert result.environment["A"] == (None, "b")
    assert result.environment["PATH"][1] is None
    assert result.command == (sys.executable, "post.py", "a", "1")


def test_binary_output_can_be_read_and_had() -> None:
    script = written("import os; os.write(1, bytes(range(256))); os.write(2, b'\\xff')")
    result = run_script(script)
    assert result.stdout_bytes == bytes(range(256))
    assert result.stderr == "\\xff"
    assert str(result)


def test_a_time_limit_ends_all_of_it_and_tells_what_it_did(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leap_when(monkeypatch, (here / "hangs").exists)
    script = written(
        "import os, subprocess, sys, time, ctypes\n"
        "def hangs():\n"
        "    open('hangs', 'w')\n"
        "    time.sleep(10000)\n"
        "ctypes.CDLL('libcuda.so.1').cuInit(0)\n"
        "command = [sys.executable, '-S', '-c', 'import time; time.sleep(10000)']\n"
        "apart = subprocess.Popen(command, start_new_session=True)\n"
        "print(os.getpid(), apart.pid, flush=True)\n"
        "hangs()\n"
    )
    with pytest.raises(
        ScriptTimeout, match=r"post.py did not end within its .* of 600 s"
    ) as caught:
        run_script(script, timeout=LIMIT)
    result = caught.value.result
    assert result is not None
    assert caught.value.timeout == LIMIT
    assert len(result.touches) == 1
    assert "in hangs" in result.stderr
    pids = [int(word) for word in result.stdout.split()[:2]]
    assert [pid for pid in pids if lives(pid)] == [], "one was in a session of its own"


def test_there_may_be_nothing_to_run(here: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no script 'nosuch"):
        run_script("nosuch.py")
    with pytest.raises(ModuleNotFoundError, match=r"-m nosuch.module cannot be run: Error while"):
        run_script("nosuch.module")
    with pytest.raises(NotADirectoryError, match="there is no such folder"):
        run_script(written(""), cwd="nosuch")


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"timeout": 0}, ValueError, "above 0 seconds"),
        ({"timeout": float("nan")}, ValueError, "above 0 seconds"),
        ({"timeout": "3"}, TypeError, "timeout='3': a time limit is a number of seconds"),
        ({"env": "x"}, TypeError, "env='x': variables are given as a dict of names and texts"),
        ({"env": {3: "x"}}, TypeError, "the name of a variable is a text, not 3"),
        ({"env": {"": "x"}}, ValueError, "no environment can hold that"),
        ({"stdin": 3}, TypeError, "stdin=3: what a script reads is a text or bytes"),
        ({"stdin": "\ud800"}, ValueError, "cannot be written as UTF-8"),
        ({"cwd": 3}, TypeError, "cwd=3: a folder is given by its path"),
        ({"device": 3}, TypeError, "device=3: a text as that of --cuda-fork-device"),
        ({"method": "thread"}, ValueError, "is no start method"),
        ({"device": "tpu"}, ValueError, "is not a device"),
        ({"env": {"A": 1}}, TypeError, "a variable holds a text"),
    ],
)
def test_wrong_arguments_are_told(
    options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        run_script(written(""), **options)


def test_a_script_without_its_start_up_is_not_clean() -> None:
    script = written(
        "import os, sys\nif len(sys.argv) == 1: os.execv(sys.executable, ['python', '-c', ''])"
    )
    assert run_script(script).deeds.processes  # it was watched before it became another
    with pytest.warns(CudaForkWarning, match=r"post.py: the program's first process was not wat"):
        result = run_script(script, env={"PYTHONPLATLIBDIR": "nowhere", "PYTHONHOME": "/nowhere"})
    assert result.exitcode != 0
    assert result.unseen


def test_a_phantom_gpu_can_be_shown_to_it() -> None:
    script = written(
        "import ctypes\n"
        "n = ctypes.c_int()\n"
        "cuda = ctypes.CDLL('libcuda.so.1')\n"
        "print(cuda.cuInit(0), cuda.cuDeviceGetCount(ctypes.byref(n)), n.value)\n"
    )
    assert run_script(script, device="phantom:sm_90x2").stdout == "0 0 2\n"


def test_at_level_poison_a_touch_in_a_forked_child_is_told() -> None:
    """Under a watch that refuses no fork, as a session with ``--cuda-fork-check=poison`` has."""
    script = written(
        "from pytest_cudafork import run_script\n"
        "import sys\n"
        "try:\n"
        "    run_script('child.py', 'fork', 'fork')\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, str(error).split(chr(10))[0])\n",
        "outer.py",
    )
    written(FORKS_AFTER_A_TOUCH, "child.py")
    from pytest_cudafork.check.watch import Watch
    from pytest_cudafork.observe.handed_on import WatchSettings

    watch = Watch(WatchSettings(str(Path("ledger").absolute()), "absent", "poison"), "1")
    watch.observer.ledger.create()
    watch.begin()
    try:
        with pytest.raises(PoisonedTouchError, match=r"a forked child touched CUDA at child.py:7"):
            run_script("child.py", "fork", "fork")
    finally:
        watch.end()
    assert script == "outer.py"


def test_the_fixture_hands_its_caretaker_and_folder_on(here: Path) -> None:
    caretaker = Caretaker()
    try:
        run = ScriptRunner(caretaker, str(here))
        script = written("import os; print(os.environ['_CUDAFORK_LEDGER'])")
        assert run(script).check().stdout.startswith(f"{here}/pytest-cudafork-run-")
        assert os.listdir(here) == [script]  # nothing is left of it
        assert caretaker.pid is not None
    finally:
        caretaker.close()


def test_the_environment_is_the_isolating_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/some/where")
    result = run_script(written("import os, json; print(json.dumps(dict(os.environ)))"))
    import json

    inside = json.loads(result.stdout)
    differing = {
        name: (text, inside[name])
        for name, text in isolated_env().items()
        if not name.startswith("_CUDAFORK_")
        and name not in ("PYTHONPATH", "LD_LIBRARY_PATH", "PYTEST_CURRENT_TEST")
        and inside.get(name, text) != text
    }
    assert differing == {}
    assert inside["LD_LIBRARY_PATH"].endswith(":/some/where")  # behind the phantom's folder
    assert inside[VLLM_METHOD] == "spawn"
