"""Makes an environment for a release: the release itself, what it needs, and our check.

An environment is made once and used again as long as it is to hold the same; one that could not be
made is not tried again before its folder is gone. Below all of them
lies one with torch, pytest and what else the plugin needs, in the versions of the interpreter that
runs the benchmark, and it finds the plugin in this checkout. Nothing else of that interpreter is
seen: a library that happens to be there could make a release touch CUDA, or keep it from doing so.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
_ALIKE = ("cloudpickle", "filelock", "packaging", "pluggy", "pytest", "tomli-w", "torch")
# Releases that are built here do not say which setuptools they need; 81 has no pkg_resources.
_BUILDERS = ("setuptools<81", "wheel", "ninja")
_FOREIGN = ("PYTEST_", "_CUDAFORK_", "PYTHON", "CUDA_", "TRITON_", "DS_", "FLASHINFER_", "TVM_")
_MADE = "made.json"
_SECONDS = 1800.0
_WORDS = 300


@dataclass(frozen=True)
class Release:
    """A release, and what is to be installed with it.

    Attributes:
        package: its name in the index.
        version: which one.
        needs: what is installed beside it, without what that asks for itself.
        needs_all: the same, with what that asks for.
        build: whether it is built from its source archive.
        environment: variables for its build and its runs.

    """

    package: str
    version: str
    needs: tuple[str, ...] = ()
    needs_all: tuple[str, ...] = ()
    build: bool = False
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def folder(self) -> str:
        """Return the name of its environment."""
        beside = hashlib.sha256(repr((self.needs, self.needs_all, self.build)).encode())
        return f"{self.package}-{self.version}-{beside.hexdigest()[:8]}"


class CannotInstallError(Exception):
    """Recoverable: a release cannot be installed here; its words say why."""


def base(folder: Path) -> Path:
    """Return the interpreter of the environment below all others, made where it is not there."""
    wanted = [*(f"{name}=={version(name)}" for name in _ALIKE), *_BUILDERS]
    return _made(folder / "base", [["--compile", *wanted]], [str(PROJECT)])


def environment(folder: Path, release: Release) -> Path:
    """Return the interpreter of the environment for a release, made where it is not there.

    Raises:
        CannotInstallError: pip could not install the release or what it needs.

    """
    below = _site_packages(base(folder))
    itself = ["--no-compile", "--no-deps", f"{release.package}=={release.version}", *release.needs]
    if release.build:
        itself = ["--no-build-isolation", "--no-binary", release.package, *itself]
    # What the releases need may ask for torch, too: it is there, and no other build may be fetched.
    torch = f"torch=={version('torch')}"
    needed = [["--no-compile", torch, *release.needs_all]] if release.needs_all else []
    finds_base = f"import site; site.addsitedir({str(below)!r})"
    return _made(folder / release.folder, [*needed, itself], [finds_base], release.environment)


def environ() -> dict[str, str]:
    """Return this process's environment without what would change how a release starts."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    return kept | {"PYTHONDONTWRITEBYTECODE": "1"}


def _made(
    target: Path,
    steps: Sequence[Sequence[str]],
    paths: Sequence[str],
    variables: Sequence[tuple[str, str]] = (),
) -> Path:
    """Make an environment by some calls of pip, unless it has been made by the same ones.

    Raises:
        CannotInstallError: pip failed, now or when it was tried with the same calls.

    """
    python = target / "bin" / "python"
    wanted = [list(map(list, steps)), list(paths)]
    made = target / _MADE
    if made.exists():
        held, why_not = json.loads(made.read_text(encoding="utf-8"))
        if held == wanted and why_not:
            raise CannotInstallError(why_not)
        if held == wanted:
            return python
    shutil.rmtree(target, ignore_errors=True)
    venv.create(target, symlinks=True, with_pip=False)
    lines = "".join(f"{path}\n" for path in paths)
    (_site_packages(python) / "below.pth").write_text(lines, encoding="utf-8")
    try:
        for step in steps:
            _pip(python, step, dict(variables))
    except CannotInstallError as error:
        made.write_text(json.dumps([wanted, str(error)]), encoding="utf-8")
        raise
    made.write_text(json.dumps([wanted, ""]), encoding="utf-8")
    return python


def _site_packages(python: Path) -> Path:
    within = Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    return python.parent.parent / within


def _pip(python: Path, arguments: Sequence[str], variables: Mapping[str, str]) -> None:
    quiet = ("--quiet", "--disable-pip-version-check", "--no-input")
    command = [sys.executable, "-m", "pip", "--python", str(python), *quiet]
    command += ["install", *arguments]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise CannotInstallError(f"pip took longer than {_SECONDS:g} s") from error
    if done.returncode != 0:
        raise CannotInstallError(reason(done.stdout))


def reason(output: str) -> str:
    """Return the line of pip's output that says best why it failed."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    of_a_build = [line for line in lines if ": error: " in line or line.endswith("Error")]
    named = [line for line in lines if "Error: " in line]
    told = [line for line in lines if line.startswith("ERROR: ")]
    best = next(iter([*of_a_build, *named, *told, *lines[-1:]]), "pip said nothing")
    return f"pip: {best[:_WORDS]}"
