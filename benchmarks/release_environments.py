"""Makes an environment for each release of a pair: the release, what it needs, and our check.

An environment is made once and used again as long as its row says the same. Below all of them lies one
that holds torch, pytest and what else the plugin needs, in the versions of the interpreter that runs the
benchmark, and finds the plugin in this checkout. Nothing else of that interpreter is seen: a library that
happens to be installed there could make a release touch CUDA, or keep it from doing so.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from release_rows import Pair

PROJECT = Path(__file__).resolve().parent.parent
_ALIKE = ("cloudpickle", "filelock", "packaging", "pluggy", "pytest", "tomli-w", "torch")
# Releases that are built here do not say which setuptools they need; 81 has no pkg_resources any more.
_BUILDERS = ("setuptools<81", "wheel", "ninja")
_MADE = "made.json"
_SECONDS = 1800.0
_WORDS = 300


class CannotInstallError(Exception):
    """Recoverable: a release cannot be installed here; its words say why."""


def base(folder: Path) -> Path:
    """Return the interpreter of the environment below all others, made where it is not there."""
    wanted = [*(f"{name}=={version(name)}" for name in _ALIKE), *_BUILDERS]
    return _made(folder / "base", [["--compile", *wanted]], [str(PROJECT)])


def environment(folder: Path, pair: Pair, release: str) -> Path:
    """Return the interpreter of the environment for a release, made where it is not there.

    Args:
        folder: where the environments are kept.
        pair: the row of the list.
        release: one of its two releases.

    Raises:
        CannotInstallError: pip could not install the release or what it needs.

    """
    below = _site_packages(base(folder))
    itself = ["--no-compile", "--no-deps", f"{pair.package}=={release}", *pair.needs]
    if pair.build:
        itself = ["--no-build-isolation", "--no-binary", pair.package, *itself]
    # What the releases need may ask for torch, too: it is there, and no other build may be fetched.
    torch = f"torch=={version('torch')}"
    needed = [["--no-compile", torch, *pair.needs_all]] if pair.needs_all else []
    target = folder / f"{pair.package}-{release}-{pair.key}"
    return _made(target, [*needed, itself], [f"import site; site.addsitedir({str(below)!r})"])


def _made(target: Path, steps: Sequence[Sequence[str]], paths: Sequence[str]) -> Path:
    """Make an environment by some calls of pip, unless it has been made by the same ones."""
    python = target / "bin" / "python"
    said = json.dumps([list(map(list, steps)), list(paths)])
    made = target / _MADE
    if made.exists() and made.read_text(encoding="utf-8") == said:
        return python
    shutil.rmtree(target, ignore_errors=True)
    venv.create(target, symlinks=True, with_pip=False)
    lines = "".join(f"{path}\n" for path in paths)
    (_site_packages(python) / "below.pth").write_text(lines, encoding="utf-8")
    for step in steps:
        _pip(python, step)
    made.write_text(said, encoding="utf-8")
    return python


def _site_packages(python: Path) -> Path:
    within = Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    return python.parent.parent / within


def _pip(python: Path, arguments: Sequence[str]) -> None:
    quiet = ("--quiet", "--disable-pip-version-check", "--no-input")
    command = [sys.executable, "-m", "pip", "--python", str(python), *quiet]
    command += ["install", *arguments]
    try:
        done = subprocess.run(
            command,
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
