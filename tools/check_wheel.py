"""Checks what users install: sdist, the wheel made from it, and a session that uses it.

Two sessions are run with the wheel: one that has to pass, and one in which a fork has to be
refused, with the line that is to blame.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from importlib import metadata
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
PACKAGE = "pytest_cudafork"
CONSTRAINTS = PROJECT / "constraints" / "dev.txt"
NATIVE = (
    *("cuda/libcuda.so", "cuda/libcuda.so.1", "nvml/libnvidia-ml.so.1"),
    "libcudafork_injection.so",
)
AT_START = "pytest_cudafork_run.pth"
_PIP_FOR_OTHERS = (22, 3)
"""From here on it has --python."""
REPORT_SECONDS = 120
"""How long the report on a program that has ended may take; only one that never comes does."""
SKIPPED = (".git", ".*cache", ".hypothesis", ".tox", ".venv*", "*.egg-info", "__pycache__")

STRICT_PYTEST = ("-W", "error", "-m", "pytest", "-W", "error", "-p", "no:cacheprovider")
"""Every warning is an error: pytest warns about plugins that are imported too early, and it can
tell only where they are installed from a wheel."""

CLEAN_TEST = """\
import pytest


def test_nothing_is_touched(cuda_state):
    assert cuda_state().safe_to_fork


@pytest.mark.spawn_only
def test_in_a_fresh_interpreter(cuda_state):
    assert cuda_state().safe_to_fork


@pytest.mark.cuda_isolated(method="forkserver")
def test_in_a_child_of_the_server(cuda_state):
    assert cuda_state().safe_to_fork
"""
FORKING_TEST = """\
import ctypes
import os

ctypes.CDLL("libcuda.so.1").cuInit(0)


def test_fork():
    if os.fork() == 0:
        os._exit(0)
"""
FROM_PYTEST_FORKED = """\
[tool.pytest.ini_options]
addopts = "--forked"
"""
"""A project of pytest-forked, in which nothing but the dependency was changed."""
FORKED_TEST = """\
import os

import pytest

SEEN = []


@pytest.mark.parametrize("number", range(2))
def test_each_in_a_fork(number):
    SEEN.append(number)
    assert SEEN == [number]


@pytest.mark.forked
def test_marked():
    assert not SEEN


def test_crashes():
    os.abort()
"""


class WheelError(Exception):
    """The wheel is not what it should be; the text says in what way."""


def run(*command: str | Path, cwd: Path, ok: tuple[int, ...] = (0,)) -> str:
    """Run a command outside the checkout's environment and return what it printed.

    Raises:
        WheelError: it ended with another status than those in ``ok``.

    """
    mine = ("PYTHON", "PYTEST_", "_CUDAFORK_", "VIRTUAL_ENV")
    env = {name: value for name, value in os.environ.items() if not name.startswith(mine)}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode not in ok:
        line = " ".join(str(part) for part in command)
        raise WheelError(f"{line}\nended with status {done.returncode}:\n{done.stdout}")
    return done.stdout


def environment(folder: Path, *packages: str | Path) -> Path:
    """Make an environment that holds these packages and nothing else; return its Python.

    They are put there by the pip of this environment where it can: to install another one there
    takes as long as all the packages.
    """
    own = pip_for_others()
    venv.create(folder, with_pip=not own, symlinks=True)
    python = folder / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python) if own else (python, "-m", "pip")
    options = ("--quiet", "--disable-pip-version-check", "--no-input", "install", "--no-compile")
    run(*pip, *options, "-c", CONSTRAINTS, *packages, cwd=folder)
    return python


def pip_for_others() -> str:
    """Return the version of this environment's pip if it can install into others; else ""."""
    try:
        version = metadata.version("pip")
    except metadata.PackageNotFoundError:
        return ""
    found = re.match(r"(\d+)\.(\d+)", version)
    return version if found and tuple(map(int, found.groups())) >= _PIP_FOR_OTHERS else ""


def build(scratch: Path) -> Path:
    """Build the sdist from a copy of the checkout, and the wheel from the sdist alone.

    Raises:
        WheelError: either of them cannot be built.

    """
    checkout = scratch / "checkout"
    left_out = (*SKIPPED, "build", "dist", "lib")
    shutil.copytree(PROJECT, checkout, ignore=shutil.ignore_patterns(*left_out), symlinks=True)
    # With a pip beside it, build gives none to the two environments that it makes.
    pip = f"pip=={pip_for_others()}" if pip_for_others() else "pip"
    python = environment(scratch / "builder", "build", pip)
    run(python, "-m", "build", "--outdir", scratch / "dist", checkout, cwd=scratch)
    return next((scratch / "dist").glob("*.whl"))


def check_contents(wheel: Path) -> None:
    """Check the names in the wheel.

    Raises:
        WheelError: something is missing, or something is in it that users do not want.

    """
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    top = {name.split("/")[0] for name in names}
    foreign = {name for name in top - {PACKAGE, AT_START} if not name.endswith(".dist-info")}
    if foreign:
        raise WheelError(f"{wheel.name} holds {sorted(foreign)} beside {PACKAGE!r}")
    expected = {f"{PACKAGE}/observe/driver/native/lib/{library}" for library in NATIVE}
    expected |= {AT_START, f"{PACKAGE}/py.typed", f"{PACKAGE}/_startup/sitecustomize.py"}
    modules = (path.relative_to(PROJECT) for path in (PROJECT / PACKAGE).rglob("*.py"))
    expected |= {module.as_posix() for module in modules}
    for folder in ("imports/graph/assets", "page/assets"):
        assets = (PROJECT / PACKAGE / folder).iterdir()
        expected |= {asset.relative_to(PROJECT).as_posix() for asset in assets}
    if missing := expected - names:
        raise WheelError(f"{wheel.name} lacks {sorted(missing)}")
    if not any(name.endswith("LICENSE") for name in names):
        raise WheelError(f"{wheel.name} lacks the licence")
    if wheel.name.endswith("-none-any.whl"):
        raise WheelError(f"{wheel.name} holds native libraries and must be for one platform")


def check_sessions(python: Path, scratch: Path) -> None:
    """Run the two sessions, each from the tests' directory and from another one.

    Raises:
        WheelError: a session did not come out as it should.

    """
    tests = scratch / "tests"
    tests.mkdir()
    (tests / "test_clean.py").write_text(CLEAN_TEST, encoding="utf-8")
    (tests / "test_forking.py").write_text(FORKING_TEST, encoding="utf-8")
    pytest = (python, *STRICT_PYTEST, "--cuda-fork-check")
    for cwd, prefix in ((tests, ""), (scratch, "tests/")):
        passed = run(*pytest, f"{prefix}test_clean.py", cwd=cwd)
        expect(passed, "3 passed", "cuda-fork: level fork", "touches: 0")
        refused = run(*pytest, f"{prefix}test_forking.py", cwd=cwd, ok=(1,))
        expect(refused, "1 failed", "fork refused", f"{prefix}test_forking.py:4", "cuInit")


def check_from_pytest_forked(python: Path, scratch: Path) -> None:
    """Run the suite of a project that had pytest-forked.

    Raises:
        WheelError: its session did not come out as it should.

    """
    project = scratch / "from-pytest-forked"
    project.mkdir()
    (project / "pyproject.toml").write_text(FROM_PYTEST_FORKED, encoding="utf-8")
    (project / "test_forked.py").write_text(FORKED_TEST, encoding="utf-8")
    said = run(python, *STRICT_PYTEST, "--strict-markers", cwd=project, ok=(1,))
    expect(said, "1 failed, 3 passed", "CRASHED with signal 6", "test_crashes")


def check_start(python: Path, scratch: Path) -> None:
    """Run a program that is watched because a variable is set.

    Raises:
        WheelError: nothing was written of it.

    """
    program, report = scratch / "touching.py", scratch / "report.txt"
    program.write_text("import ctypes\nctypes.CDLL('libcuda.so.1').cuInit(0)\n", encoding="utf-8")
    run("env", f"PYTEST_CUDA_FORK_RUN={report}", python, program, cwd=scratch)
    until = time.monotonic() + REPORT_SECONDS
    while not (report.exists() and report.read_text(encoding="utf-8")):
        if time.monotonic() > until:
            raise WheelError(f"{AT_START} has begun no watch: {report.name} is empty")
        time.sleep(0.05)
    expect(report.read_text(encoding="utf-8"), "touching.py:2", "cuInit")


def expect(output: str, *texts: str) -> None:
    """Check that a session printed these texts.

    Raises:
        WheelError: one of them is missing.

    """
    for text in texts:
        if text not in output:
            raise WheelError(f"{text!r} is missing in this output:\n{output}")


def main() -> int:
    """Check everything; the exit status is 1 when something is wrong."""
    with tempfile.TemporaryDirectory(prefix="check-wheel-") as folder:
        scratch = Path(folder)
        try:
            wheel = build(scratch)
            check_contents(wheel)
            python = environment(scratch / "empty", wheel)
            check_sessions(python, scratch)
            check_start(python, scratch)
            check_from_pytest_forked(python, scratch)
            run(python, PROJECT / "tools" / "try_wheel.py", cwd=scratch)
        except WheelError as error:
            sys.stderr.write(f"wheel-check: {error}\n")
            return 1
        sys.stdout.write(f"wheel-check: {wheel.name} is complete and works\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
