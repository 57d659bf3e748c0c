"""What is installed, as opposed to what somebody edits: folders of libraries, and versions.

The two sides of an audit agree here on which files are known by the versions of libraries.
"""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from collections.abc import Iterable

from pytest_cudafork.compat.unpatched import os
from pytest_cudafork.distributions import source_of

_ENDINGS = (".dist-info", ".egg-info")
_FOLDERS = ("/site-packages/", "/dist-packages/")
_OF_SYSTEM = ("/proc/", "/sys/", "/dev/")
_OWN = f"{os.path.realpath(__file__).rpartition('/imports/')[0]}/"
"""This plugin, whose version stands for it wherever it lies."""


def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = {paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    return tuple({f"{each}/" for path in folders for each in (path, os.path.realpath(path))})


_LIBRARIES = _library_folders()


def is_installed(path: str) -> bool:
    """Whether a file belongs to Python, to the system, or to where libraries are installed."""
    return path.startswith((*_LIBRARIES, *_OF_SYSTEM, _OWN)) or any(
        each in path for each in _FOLDERS
    )


def installed_versions(root: str, paths: Iterable[str] | None = None) -> dict[str, str]:
    """Return what is installed, by the names of the folders that say so, with a fingerprint.

    The name of such a folder has the version in it. Of an editable installation of what lies below
    ``root`` only the entry points count: its files are looked at one by one.

    Args:
        root: The folder of the repository.
        paths: Where to look; None: the module search path.

    """
    found: dict[str, str] = {}
    for folder in sys.path if paths is None else paths:
        try:
            names = os.listdir(folder or os.curdir)
        except OSError:
            continue  # a zip file, or nothing at all
        for name in names:
            path = os.path.join(folder, name)
            if not name.endswith(_ENDINGS):
                continue
            if not _is_editable_below(path, root):
                found.setdefault(name, _fingerprint(path, "RECORD"))
            elif points := _fingerprint(path, "entry_points.txt"):
                # without its version, which tools make from that of each commit
                found.setdefault(f"entry points of {name.partition('-')[0]}", points)
    return found


def _fingerprint(folder: str, name: str) -> str:
    """Return that of a file; RECORD, pip's list of files and hashes, changes with each build."""
    try:
        with open(os.path.join(folder, name), "rb") as file:
            return hashlib.sha1(file.read(), usedforsecurity=False).hexdigest()
    except OSError:
        return ""


def _is_editable_below(folder: str, root: str) -> bool:
    try:
        with open(os.path.join(folder, "direct_url.json"), encoding="utf-8") as file:
            source = source_of(file.read())
    except (OSError, ValueError):
        source = None
    if source is None:
        return folder.endswith(".egg-info") and os.path.realpath(folder).startswith(f"{root}/")
    return source.editable and f"{os.path.realpath(source.folder)}/".startswith(f"{root}/")
