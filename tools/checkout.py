"""Copies of the checkout, each with an interpreter that imports it, to change or compare code.

The interpreter is an environment laid over the one that runs the tool: it has all that is installed
there, and finds ``pytest_cudafork`` in the copy first, so every process that is started by it does,
too, whatever its environment variables or options (``-I``, ``-E``) are. The plugin's entry point is
the installed one; it names a module, which is looked up in the copy.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
PACKAGE = "pytest_cudafork"
_SKIPPED = {".venv", ".git"}


def copy_checkout(target: Path, project: Path = PROJECT) -> None:
    """Copy the files of the checkout that git does not ignore, and the built native libraries.

    Raises:
        subprocess.CalledProcessError: ``project`` is no git checkout.

    """
    listing = ["git", "-C", str(project), "ls-files", "-z", "--cached", "--others"]
    names = subprocess.run(
        [*listing, "--exclude-standard"], stdout=subprocess.PIPE, check=True, text=True
    ).stdout.split("\0")
    for name in names:
        path = project / name
        if name and path.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target / name, follow_symlinks=False)
    for folder in (project / PACKAGE).rglob("native/lib"):
        shutil.copytree(folder, target / folder.relative_to(project), dirs_exist_ok=True)


def check_out(target: Path, revision: str, project: Path = PROJECT) -> None:
    """Write the files of a revision below ``target`` and build its native libraries.

    Raises:
        subprocess.CalledProcessError: git knows no such revision, or the build failed.

    """
    target.mkdir(parents=True, exist_ok=True)
    archive = subprocess.Popen(
        ["git", "-C", str(project), "archive", revision], stdout=subprocess.PIPE
    )
    subprocess.run(["tar", "-x", "-C", str(target)], stdin=archive.stdout, check=True)
    if archive.wait():
        raise subprocess.CalledProcessError(archive.returncode, archive.args)
    build_native(target)


def build_native(checkout: Path) -> None:
    """Compile the native libraries of a checkout where its own ``setup.py`` puts them."""
    command = [sys.executable, "setup.py", "--quiet", "build_native", "--inplace"]
    subprocess.run(command, cwd=checkout, check=True)


def make_interpreter(checkout: Path) -> Path:
    """Make the interpreter of a copy, in its ``.venv``; return the path of its ``python``."""
    folder = checkout / ".venv"
    venv.create(folder, symlinks=True, with_pip=False)
    below = Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    lines = f"{checkout}\nimport site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    (folder / below / "checkout.pth").write_text(lines, encoding="utf-8")
    return folder / "bin" / "python"
