"""What a story says of scripts, fork servers, native forks, and forks past the guard."""

from __future__ import annotations

import sys
import zipfile

import pytest

from tests.support.sessions import (
    TIME_LIMIT,
    check,
    counts,
    failure,
    line_of,
    module,
    outcomes,
    run_session,
)

KEPT = """
import os

class Kept:
    fork = staticmethod(os.fork)

def by_default(fork=os.fork):
    return fork()  # forks by default
"""

SCRIPT = """
touch()
child()
"""

FORK_SERVER = """
if __name__ == "__main__":
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["preloaded"])
    context.Process(target=print).start()
"""

CASES = """
import kept

def test_script():
    subprocess.run([sys.executable, "script.py"])

def test_fork_server():
    path = os.pathsep.join([os.environ["PYTHONPATH"], os.getcwd()])
    environment = {**os.environ, "PYTHONPATH": path}
    subprocess.run([sys.executable, "serve.py"], env=environment)

def test_another_process():
    code = 'import ctypes; ctypes.CDLL("libcuda.so.1").cuInit(0)'
    subprocess.run([sys.executable, "-c", code])

def test_fork_in_native_code():
    touch()  # first
    touch()  # second
    pid = ctypes.PyDLL(None).fork()
    if pid == 0:
        touch()
        os._exit(0)
    os.waitpid(pid, 0)

def end(pid):
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)

def test_attribute_that_was_kept():
    end(kept.Kept.fork())  # forks by attribute

def test_default_that_was_kept():
    end(kept.by_default())

@pytest.mark.cuda_fork_ok(reason="the child does nothing")
def test_marked():
    end(kept.Kept.fork())

def test_preexec_fn_is_no_fork():
    subprocess.run(["true"], check=True, preexec_fn=os.getpid)
"""


def test_stories_say_what_is_so(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(pytester.path)
    early = pytester.makepyfile(kept=KEPT)
    pytester.makepyfile(
        script=module(SCRIPT), preloaded=module("touch()\n"), serve=module(FORK_SERVER)
    )
    path = pytester.makepyfile(test_it=module(CASES))
    result = run_session(
        pytester,
        "-v",
        "--cuda-fork-check",
        env={"PYTEST_CUDA_FORK_DEVICE": "phantom"},
        plugin=("-p", "kept", "-p", "pytest_cudafork.plugin"),
    )
    passing = {"test_another_process", "test_marked", "test_preexec_fn_is_no_fork"}
    assert {name for name, outcome in outcomes(result).items() if outcome == "PASSED"} == passing

    told = failure(result, "test_script")
    assert "move the line into a function, and call that in the child" in told
    assert "<module> in the child" not in told
    assert "the error ended the process (script.py)" in told

    told = failure(result, "test_fork_server")
    assert "multiprocessing's fork server has imported it" in told
    assert 'or "forkserver"' not in told
    assert "multiprocessing/forkserver.py:" in told.partition("CUDA was")[0]

    told = failure(result, "test_fork_in_native_code").partition("the child touched")[0]
    assert f"test_it.py:{line_of(path, '# first')}: " in told
    assert "# second" not in told

    by = {
        "test_attribute_that_was_kept": f"test_it.py:{line_of(path, '# forks by attribute')}",
        "test_default_that_was_kept": f"kept.py:{line_of(early, '# forks by default')}",
    }
    for name, place in by.items():
        told = failure(result, name)
        assert f"fork past the guard at {place}: CUDA was initialized at" in told
        assert "load the plugin earlier (-p cudafork)" in told
    numbers = counts(result)
    assert numbers["forks past the guard"] == 2
    assert numbers["forks allowed while initialized"] == 1


BY_PYTEST_ALONE = """
@pytest.fixture
def touched():
    touch()

def test_finalizer(touched, request):
    request.addfinalizer(os.fork)
"""
RUN_TESTS = """
import sys
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""


def test_a_fork_that_pytest_alone_has_made_is_blamed_on_nobody_and_says_when(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(test_it=module(BY_PYTEST_ALONE), run_tests=RUN_TESTS)
    options = ("-p", "pytest_cudafork.plugin", "--cuda-fork-check", "--cuda-fork-device=phantom")
    result = pytester.run(sys.executable, "run_tests.py", *options, timeout=TIME_LIMIT)
    story = result.stdout.str()
    assert "fork refused at _pytest/runner.py:" in story
    by = story.partition("os.fork was called by")[2].partition("If this fork is right")[0]
    assert "> fin()" in by
    assert "no line of yours is in the stack" in by
    assert "in test_it.py::test_finalizer (teardown)" in by
    assert "run_tests.py" not in story


def test_the_story_shows_lines_of_modules_in_zip_files(pytester: pytest.Pytester) -> None:
    with zipfile.ZipFile(pytester.path / "lib.zip", "w") as archive:
        archive.writestr("zipped/__init__.py", "")
        archive.writestr("zipped/config.py", module("class Config:\n    gpus = touch()\n"))
    pytester.makeconftest("import sys\nsys.path.insert(0, 'lib.zip')\n")
    pytester.makepyfile("import os\nimport zipped.config\ndef test_a():\n    os.fork()\n")
    told = failure(check(pytester, "fork"), "test_a")
    assert "lib.zip/zipped/config.py:" in told
    assert "(class body)" in told
    assert '> gpus = ctypes.CDLL("libcuda.so.1").cuInit(0)' in told


def test_a_refused_fork_has_the_line_the_imports_that_led_there_and_the_line_that_forks(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(pytester.path)
    pytester.makepyfile(deep=module("KERNEL = touch()  # culprit"), layers="import deep")
    pytester.makepyfile(
        test_it="""
        import os

        def test_forks():
            import layers
            os.fork()  # forks
    """
    )
    told = failure(check(pytester, "fork"), "test_forks")
    lines = [line.removeprefix("E").strip() for line in told.splitlines()]
    culprit = line_of(pytester.path / "deep.py", "# culprit")
    forks = line_of(pytester.path / "test_it.py", "# forks")
    first = f"fork refused at test_it.py:{forks}: CUDA was initialized at deep.py:{culprit}"
    assert any(first in line for line in lines)
    at = lines.index("imported through:")
    assert lines[at + 1 : at + 3] == ["test_it.py:4  import layers", "layers.py:1  import deep"]
