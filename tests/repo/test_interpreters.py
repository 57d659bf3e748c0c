"""The server of interpreters: what it forks is as good as a fresh interpreter."""

from __future__ import annotations

import importlib.metadata
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pytest_cudafork.process.descendants import process_state
from tests.support import (
    imported_ahead,
    interpreter_child,
    interpreter_environment,
    interpreter_programs,
    interpreter_servers,
    interpreters,
)
from tests.support.isolation import is_gone
from tests.support.sessions import needs_torch

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _with_servers(
    servers: interpreter_servers.Servers,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Use them in each test, whatever the whole run does.

    An empty working directory tells nothing of torch: the checkout would, and each server that
    these tests start would import it.
    """
    monkeypatch.chdir(tmp_path_factory.mktemp("empty"))
    if request.node.get_closest_marker("fresh_interpreter") is None:
        monkeypatch.delenv(interpreters.FRESH, raising=False)
    monkeypatch.setattr(interpreter_servers, "_WORTH_A_SERVER", 1)
    monkeypatch.setattr(interpreters, "servers", lambda: servers)


def run(*args: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return interpreters.run([sys.executable, *args], timeout=120, **options)


def both(*args: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command from the server and fresh; they must not differ."""
    forked, fresh = run(*args, **options), run(*args, **options, fresh="to compare")
    assert (forked.returncode, forked.stdout, forked.stderr) == (
        fresh.returncode,
        fresh.stdout,
        fresh.stderr,
    )
    return forked


def is_forked(*args: str, **options: Any) -> bool:
    """Whether a command that prints the command line of its process was run by a server."""
    return "interpreter_server" in run(*args, **options).stdout


SHOW = "print(open('/proc/self/cmdline').read())"
SURROUNDINGS = """
import os, signal, sys, threading, warnings
print(os.getcwd(), os.getppid(), os.getpgid(0), os.getsid(0), os.umask(0o22))
print(sorted(os.environ.items()))
with open("/proc/self/environ") as file:
    print(sorted(one for one in file.read().split("\\0") if one))
print(sys.argv, sys.orig_argv, sys.path, sys.flags, sys.executable)
print(sorted(set(globals()) - {"__annotations__"}), __name__)
print(getattr(sys.modules["__main__"], "__file__", None))
for stream in (sys.stdin, sys.stdout, sys.stderr, sys.__stdout__):
    print(stream.name, stream.mode, stream.encoding, stream.errors, stream.newlines,
          stream.line_buffering, stream.write_through, stream.fileno(), stream.isatty())
print(warnings.filters, [one.name for one in threading.enumerate()], sys.stdin.read())
print([signal.getsignal(number) for number in sorted(signal.valid_signals())])
print(sorted(os.listdir("/proc/self/fd"))[:3], signal.pthread_sigmask(signal.SIG_BLOCK, []))
print([name for name in sys.modules if name.startswith(("tests", "pytest_cudafork"))])
"""


@pytest.mark.parametrize("kind", ["-c", "script", "-m"])
def test_a_program_finds_the_same_around_itself(kind: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SURROUNDINGS)
    command = {"-c": ["-c", SURROUNDINGS], "script": ["program.py"], "-m": ["-m", "program"]}[kind]
    env = {**os.environ, "PYTHONPATH": "/nowhere:somewhere", "ADDED": "1"}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # a child of a server has it, but not in sys.flags
    both(*command, "an argument", cwd=tmp_path, env=env)
    both(*command, "an argument", cwd=tmp_path, env=env, merge=True)
    assert is_forked("-c", SHOW)


@pytest.mark.parametrize(
    "code",
    [
        "import sys; sys.exit(3)",
        "import sys; sys.exit('in words')",
        "raise SystemExit",
        "1 / 0",
        "def f(): raise ValueError('deep')\nf()",
        "raise KeyboardInterrupt",
        "import os; os.kill(os.getpid(), 15)",
        "import os; os._exit(9)",
        "import atexit; atexit.register(print, 'at the end')",
        "import threading; threading.Timer(0.1, print, ['later']).start()",
        "import sys; sys.stderr.write('no newline'); sys.stdout.write('neither')",
        "syntax error",
    ],
)
def test_a_program_ends_the_same(code: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(code)
    both("program.py", cwd=tmp_path)
    both("-c", code)


def test_a_session_is_the_same_and_asks_nothing_of_the_server(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_a(): pass\ndef test_b(): assert [1] == [2]\n")
    command = ["-m", "pytest", "-p", "no:cacheprovider", "-qq", "--tb=short"]
    assert both(*command, cwd=tmp_path).returncode == 1
    imported = run("-c", "import sys; print(*sys.modules)").stdout.split()
    assert "pytest" in imported
    assert not {"pytest_cudafork", "tests", "xdist", "hypothesis"} & set(imported)


OURS = """
import importlib, sys

def test_it(capsys):
    with capsys.disabled():
        for name, module in sorted(sys.modules.items()):
            if name.partition(".")[0] == "pytest_cudafork":
                spec = module.__spec__
                # this one copies what has been imported, and the rest when somebody asks for it
                names = () if name.endswith(".unpatched") else sorted(vars(module))
                print(name, spec.name, spec.origin, type(spec.loader).__name__, *names)
        before = sys.modules.pop("pytest_cudafork.errors")
        print(importlib.import_module("pytest_cudafork.errors") is before)
"""


@pytest.mark.parametrize(
    "options",
    [(), ("--cuda-fork-check",), ("--cuda-fork-isolate=spawn",)],
    ids=["alone", "check", "spawn"],
)
def test_a_session_imports_the_modules_of_the_plugin_that_it_ever_does(
    tmp_path: Path, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interpreters, "CHILDREN_TOO", True)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    (tmp_path / "test_ours.py").write_text(OURS)
    command = ("-m", "pytest", "-p", "no:cacheprovider", "-p", "pytest_cudafork.plugin", "-qqs")
    written = both(*command, *options, cwd=tmp_path).stdout
    assert "pytest_cudafork.check.session" in written
    assert "False" in written, "what is imported once more is executed once more"


def test_a_plugin_of_that_name_that_comes_first_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    (tmp_path / "pytest_cudafork").mkdir()
    (tmp_path / "pytest_cudafork/__init__.py").write_text("")
    (tmp_path / "pytest_cudafork/errors.py").write_text("print('of the test')")
    command = ("-m", "pytest", "-p", "no:cacheprovider", "-p", "pytest_cudafork.errors", "-qq")
    assert "of the test" in both(*command, cwd=tmp_path).stdout


def test_what_was_replaced_before_the_plugin_imported_it_is_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    (tmp_path / "conftest.py").write_text(
        "import os\n"
        "os.fork, before = lambda: 0, os.fork\n"
        "from pytest_cudafork.process.forking import short_stack\n"
        "print('replaced:', short_stack.fork is os.fork)\n"
        "os.fork = before\n"
    )
    command = ("-m", "pytest", "-p", "no:cacheprovider", "-qq", "--collect-only")
    assert "replaced: True" in both(*command, cwd=tmp_path).stdout


SLOW = ["anyio", "hypothesispytest", "platformdirs"]


@pytest.mark.parametrize("fresh", ["", "to compare"])
def test_a_session_has_the_plugins_that_load_slowly_if_it_is_fresh(
    tmp_path: Path, fresh: str
) -> None:
    (tmp_path / "conftest.py").write_text(
        "def pytest_configure(config):\n"
        "    has = config.pluginmanager.hasplugin\n"
        f"    print([name for name in {SLOW} if has(name)])\n"
    )
    installed = {one.name for one in importlib.metadata.entry_points(group="pytest11")}
    slow = sorted(installed & set(SLOW))
    command = ["-m", "pytest", "-qq", "--collect-only"]
    loaded = run(*command, cwd=tmp_path, fresh=fresh).stdout.strip()
    assert loaded == str(slow if fresh else [])


PACKAGES = """
from importlib import metadata
for package in [*metadata.distributions()] * 2:
    points = sorted(package.entry_points)
    print(package.read_text("INSTALLER"), package.read_text("no such file"), points)
    if "pytest11" in {point.group for point in points}:
        print(package.metadata.items(), package.files, [one.dist.version for one in points])
print(metadata.distribution("pytest").locate_file("pytest"), metadata.version("mine"))
"""


def test_the_same_packages_are_installed(tmp_path: Path) -> None:
    make_package(tmp_path, "mine")
    done = both("-c", PACKAGES, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert "pytest11" in done.stdout


def test_a_package_is_found_that_was_installed_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path / "none")])
    make_package(tmp_path, "one")
    packages = imported_ahead.InstalledPackages()
    context = importlib.metadata.DistributionFinder.Context()

    def names() -> list[str]:
        return sorted(found.name for found in packages.find_distributions(context))

    before = list(packages.find_distributions(context))
    assert (names(), before) == (["one"], list(packages.find_distributions(context)))
    make_package(tmp_path, "two")
    os.utime(tmp_path, ns=(0, 0))  # as a clock with long ticks might have left it
    assert names() == ["one", "two"]
    named = importlib.metadata.DistributionFinder.Context(name="two")
    assert [found.name for found in packages.find_distributions(named)] == ["two"]


def make_package(folder: Path, name: str) -> None:
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")


@needs_torch
def test_torch_is_there_when_it_is_imported_and_not_before() -> None:
    code = (
        "import sys; print([m for m in sys.modules if m.startswith(('torch', 'numpy'))])\n"
        "import numpy; print('torch' in sys.modules)\n"
        "import torch.nn; print(torch.__spec__.name, torch.nn.__spec__.origin, torch.ones(2) + 1)\n"
        "import torch.fx.experimental.proxy_tensor\n"
        "print(sorted(m for m in sys.modules if m.startswith('torch')))"
    )
    both("-c", code)


ORDER = """
import sys
from pytest_cudafork.observe.base.after_import import after_import
ready = []
for name in ("torch", "cuda", "cuda.graphs", "profiler", "profiler.profiler", "backends",
             "backends.cudnn", "accelerator", "accelerator._utils"):
    after_import(name if name == "torch" else f"torch.{name}", lambda m: ready.append(m.__name__))
import torch
print(ready)
print([sys.modules[f"torch.{name}"] is getattr(torch, name) for name in ("backends", "cuda")],
      sys.modules["torch.backends.cudnn"] is torch.backends.cudnn, torch.backends.cudnn.__spec__)
"""


@needs_torch
def test_modules_of_torch_are_ready_in_the_order_in_which_they_were_executed() -> None:
    ready = both("-c", ORDER).stdout.splitlines()[0]
    assert ready.endswith("'torch']")
    assert ready.count("'") == 18, "each once"


ASKED = """
import sys

class Noting:
    def find_spec(self, name, path, target=None):
        asked.add(name)
        if name == "torch.cuda":
            print(list(path) == list(sys.modules["torch"].__path__))

asked = set()
sys.meta_path.insert(0, Noting())
import torch
print(sorted({one for one in sys.modules if one.startswith("torch")} - asked))
for name, module in list(sys.modules.items()):
    if name.startswith("torch"):
        spec = getattr(module, "__spec__", None)
        print(name, spec and (spec.name, spec.origin, type(spec.loader)), type(module.__loader__))
"""


@needs_torch
def test_who_listens_to_imports_hears_of_each_module_of_torch() -> None:
    both("-c", ASKED)


@needs_torch
def test_a_torch_that_comes_first_is_imported(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("print('of the test')")
    assert both("-c", "import torch", cwd=tmp_path).stdout == "of the test\n"


@needs_torch
@pytest.mark.skipif(
    tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) < (6, 1)
    or not Path("/sys/kernel/mm/transparent_hugepage").is_dir(),
    reason="this kernel has no MADV_COLLAPSE, which came with Linux 6.1, or no huge pages",
)
def test_what_a_server_has_imported_of_torch_is_in_huge_pages(
    servers: interpreter_servers.Servers,
) -> None:
    assert is_forked("-c", f"# torch\n{SHOW}")
    with_torch = [
        Path(f"/proc/{server.pid}")
        for server in servers.running()
        if b"torch" in Path(f"/proc/{server.pid}/cmdline").read_bytes()
    ]
    assert with_torch
    for process in with_torch:
        memory = (process / "smaps_rollup").read_text(encoding="ascii")
        assert re.search(r"^AnonHugePages: +[1-9]", memory, re.M), memory


def test_what_is_read_at_start_needs_a_fresh_one(tmp_path: Path) -> None:
    assert is_forked("-c", SHOW)
    assert not is_forked("-c", SHOW, fresh="a reason")
    assert not is_forked("-X", "dev", "-c", SHOW)
    for name in ("PYTHONWARNINGS", "OMP_NUM_THREADS", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES"):
        assert not is_forked("-c", SHOW, env={**os.environ, name: "1"}), name
    (tmp_path / "sitecustomize.py").touch()
    assert not is_forked("-c", SHOW, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    (tmp_path / "sitecustomize.py").rename(tmp_path / "queue.py")
    assert not is_forked("-c", SHOW, cwd=tmp_path)
    (tmp_path / "queue.py").rename(tmp_path / "pytest.ini")
    assert is_forked("-c", SHOW, cwd=tmp_path)


def test_random_hashes_need_no_server_of_their_own(servers: interpreter_servers.Servers) -> None:
    assert is_forked("-c", SHOW)
    before = servers.running()
    for value in ("", "random"):
        env = {**os.environ, "PYTHONHASHSEED": value}
        both("-c", "import sys; print(sys.flags.hash_randomization)", env=env)
    assert is_forked("-c", SHOW, env={**os.environ, "PYTHONHASHSEED": "random"})
    assert servers.running() == before


@pytest.mark.parametrize("value", ["", "1"])
def test_bytecode_is_written_where_the_environment_says_so(value: str) -> None:
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": value}
    assert is_forked("-c", SHOW, env=env)
    assert both("-c", "import sys; print(sys.dont_write_bytecode)", env=env).stdout.strip() == str(
        bool(value)
    )


def test_the_variable_keeps_all_to_fresh_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(interpreters.FRESH, "a reason")
    assert not is_forked("-c", SHOW)
    assert interpreters.FRESH not in run("-c", "import os; print(os.environ)").stdout


def test_variables_that_are_read_at_start_are_restored_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"TORCH_KEPT": "1", "TORCH_LOST": "2", "OTHER": "3"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TORCH_NEW", raising=False)
    before = interpreter_environment.Environment()
    monkeypatch.setenv("TORCH_KEPT", "another")
    monkeypatch.setenv("OTHER", "another")
    monkeypatch.setenv("TORCH_NEW", "1")
    monkeypatch.delenv("TORCH_LOST")
    before.restore()
    found = [os.environ.get(f"TORCH_{name}") for name in ("KEPT", "LOST", "NEW")]
    assert [*found, os.environ["OTHER"]] == ["1", "2", None, "another"]


@pytest.mark.fresh_interpreter("to see that the marker does it")
def test_a_marked_test_starts_fresh_ones(pytester: pytest.Pytester) -> None:
    assert "interpreter_server" not in pytester.runpython_c(SHOW).stdout.str()


def test_pytester_runs_its_sessions_there(pytester: pytest.Pytester) -> None:
    assert "interpreter_server" in pytester.runpython_c(SHOW).stdout.str()
    pytester.makepyfile("import time\ndef test_a(): time.sleep(3600)")
    with pytest.raises(pytester.TimeoutExpired):
        pytester.runpytest_subprocess(timeout=0.5)


def test_a_server_that_dies_takes_nothing_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = interpreter_servers.Servers()
    monkeypatch.setattr(interpreters, "servers", lambda: servers)
    assert is_forked("-c", SHOW)
    (server,) = servers.running()
    code = f"import os, signal; os.kill({server.pid}, signal.SIGKILL); print('lives')"
    assert run("-c", code).stdout == "lives\n"
    assert is_forked("-c", SHOW), "another server took its place"
    (other,) = servers.running()
    servers.close()
    assert other.pid != server.pid


def test_what_a_forked_child_writes_to_the_server_is_no_request(
    servers: interpreter_servers.Servers,
) -> None:
    assert is_forked("-c", SHOW)
    for server in servers.running():
        for text in (b"this is no message at all", b"5"):
            server._control.send(text)
    for number in range(3):
        assert run("-c", f"print({number})").stdout == f"{number}\n"


def test_a_server_that_cannot_start_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = interpreter_servers.Servers()
    monkeypatch.setattr(interpreters, "servers", lambda: servers)
    monkeypatch.setattr(interpreter_servers, "_SCRIPT", Path("/nowhere/server.py"))
    assert not is_forked("-c", SHOW)


WORKER = """
import os, sys
sys.path.insert(0, {root!r})
from tests.support import interpreter_servers, interpreters
interpreter_servers._WORTH_A_SERVER = 1
interpreters.run([sys.executable, "-c", "pass"], timeout=60)
(server,) = interpreter_servers.servers().running()
print(server.pid, flush=True)
{end}
"""


@pytest.mark.parametrize(
    "end", ["interpreter_servers.servers().close()", "os.kill(os.getpid(), 9)", "os._exit(0)"]
)
def test_no_server_is_left_behind(end: str) -> None:
    code = WORKER.format(root=str(Path(__file__).parents[2]), end=end)
    done = run("-c", code, fresh="it is a test process of its own")
    assert is_gone(int(done.stdout)), done


HANG = """
import subprocess, sys, time
from pathlib import Path
note = Path(sys.argv[1])
note.with_suffix(".new").write_text(str(subprocess.Popen(["sleep", "3600"]).pid))
note.with_suffix(".new").rename(note)
time.sleep(3600)
"""


def test_a_hang_is_ended_and_what_leads_a_session_with_it(tmp_path: Path) -> None:
    note, timeout = tmp_path / "pid", 0.5
    command = [sys.executable, "-c", HANG, str(note)]
    while not note.exists():  # it had no time to start what would be left behind
        timeout *= 2
        assert timeout < 200
        with pytest.raises(subprocess.TimeoutExpired):
            interpreters.run(command, timeout=timeout, start_new_session=True)
    assert is_gone(int(note.read_text()))


def test_a_hang_is_ended_that_does_not_lead_its_session_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a server forks becomes the leader a moment later."""
    monkeypatch.setattr(os, "killpg", lambda *_: os.kill(2**22, 0))  # no process has that number
    command = [sys.executable, "-c", "import time; time.sleep(3600)"]
    with pytest.raises(subprocess.TimeoutExpired):
        interpreters.run(command, timeout=0.1, start_new_session=True)


def test_what_loses_its_parent_while_a_child_is_handed_over_is_reaped(
    servers: interpreter_servers.Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_forked("-c", SHOW)
    code = "import os, sys; sys.stdin.read(1); os.posix_spawn('/bin/sleep', ['sleep', '0.3'], {})"
    dying = subprocess.Popen([sys.executable, "-S", "-c", code], stdin=subprocess.PIPE)
    expect = interpreter_servers.Server._expect

    def die_meanwhile(server: interpreter_servers.Server, word: bytes) -> bytes:
        dying.communicate()
        return expect(server, word)

    monkeypatch.setattr(interpreter_servers.Server, "_expect", die_meanwhile)
    assert run("-c", "print(1)").stdout == "1\n"
    (server,) = (one for one in servers.running() if one.adopted)
    (orphan,) = server.adopted
    assert process_state.parent_of(orphan) == os.getpid()
    os.waitid(os.P_PID, orphan, os.WEXITED | os.WNOWAIT)
    servers.reap_adopted()
    assert not server.adopted
    with pytest.raises(ChildProcessError):
        os.waitpid(orphan, os.WNOHANG)


def test_several_threads_start_some_at_once_and_each_has_its_own() -> None:
    with ThreadPoolExecutor(4) as pool:
        codes = [f"print({number}); raise SystemExit({number})" for number in range(32)]
        ended = list(pool.map(lambda code: run("-c", code), codes))
    assert [int(each.stdout) for each in ended] == list(range(32))
    assert [each.returncode for each in ended] == list(range(32))


def test_a_signal_reaches_it() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    command = [sys.executable, "-c", "import time; time.sleep(3600)"]
    process = interpreters.start(command, stdin=nothing, stdout=nothing, stderr=nothing)
    os.close(nothing)
    assert isinstance(process, interpreter_child.Child)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.05)
    process.terminate()
    assert process.wait(120) == process.poll() == -signal.SIGTERM


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["-m", "pytest", "-q"], interpreter_programs.Program("-m", "pytest", ("-q",))),
        (["-mpytest", "x"], interpreter_programs.Program("-m", "pytest", ("x",))),
        (["-c", "pass"], interpreter_programs.Program("-c", "pass", ())),
        (["script.py", "-c"], interpreter_programs.Program("", "script.py", ("-c",))),
        (["-c"], None),
        (["-S", "script.py"], None),
        ([], None),
    ],
)
def test_commands_are_told_apart(
    command: Sequence[str], expected: interpreter_programs.Program | None
) -> None:
    assert interpreter_programs.program_of([sys.executable, *command]) == expected
    assert interpreter_programs.program_of(["python-of-another", *command]) is None
