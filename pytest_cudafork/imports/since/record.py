"""The record of imports: which files each import executed or read, as an audit has seen it.

It lies in git's own folder, a file for each package, so that pytest and the command line find the
same one wherever they are started, and nothing of it can be committed.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_cudafork.documents.writing import write_at_once

FORMAT = 3


@dataclass(frozen=True)
class SeenFile:
    """A file of the repository, as it was.

    Attributes:
        digest: Of its content; "" if it was not there or has changed while the audit ran. Of a
            folder, whose path ends in a slash: of the names in it.
        imports: The modules that are named anywhere in it, for a module of the package.
        is_dynamic: Whether it may import what is not named in it.

    """

    digest: str
    imports: tuple[str, ...] = ()
    is_dynamic: bool = False


@dataclass(frozen=True)
class SeenImport:
    """One import.

    Attributes:
        files: What it executed and read; None if that is not known, as after a crash.
        verdict: Its verdict's words.
        where: The line that touched, or "".
        suspects: Files with which it is not clean any more, or not known to be, and which git does
            not name: they differ from the record only once.

    """

    files: frozenset[str] | None
    verdict: str = ""
    where: str = ""
    suspects: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ImportsRecord:
    """What is known of the imports of one package.

    Attributes:
        about: What must be as it was: versions, device, installed packages by name.
        modules: The file of each module that there was.
        files: All files that any import executed or read.
        imports: The imports, by the names of their tests.
        shared: What the fork server had executed or read before an import began: which of these
            an import uses is not known.

    """

    about: Mapping[str, Any]
    modules: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, SeenFile] = field(default_factory=dict)
    imports: Mapping[str, SeenImport] = field(default_factory=dict)
    shared: frozenset[str] = frozenset()


def read_record(path: str) -> ImportsRecord | None:
    """Read a record; None if there is none, or it is none of this format."""
    try:
        with open(path, encoding="utf-8") as file:
            return _from_plain(json.load(file))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def write_record(path: str, record: ImportsRecord) -> None:
    """Write a record, at once.

    Raises:
        OSError: It cannot be written.

    """
    write_at_once(path, json.dumps(_to_plain(record), separators=(",", ":")) + "\n")


def _to_plain(record: ImportsRecord) -> dict[str, Any]:
    """Return it as plain data; files are named by their numbers, as they stand in many imports."""
    numbers = {path: number for number, path in enumerate(record.files)}
    return {
        "format": FORMAT,
        "about": dict(record.about),
        "modules": dict(record.modules),
        "files": [[path, *dataclasses.astuple(seen)] for path, seen in record.files.items()],
        "shared": sorted(numbers[path] for path in record.shared),
        "imports": {
            name: [
                None if seen.files is None else sorted(numbers[path] for path in seen.files),
                seen.verdict,
                seen.where,
                sorted(seen.suspects),
            ]
            for name, seen in record.imports.items()
        },
    }


def _from_plain(data: dict[str, Any]) -> ImportsRecord | None:
    if data["format"] != FORMAT:
        return None
    paths = [path for path, *_ in data["files"]]
    return ImportsRecord(
        about=dict(data["about"]),
        modules=dict(data["modules"]),
        files={
            path: SeenFile(digest, tuple(imports), bool(is_dynamic))
            for path, digest, imports, is_dynamic in data["files"]
        },
        imports={
            name: SeenImport(
                None if files is None else frozenset(paths[number] for number in files),
                verdict,
                where,
                frozenset(suspects),
            )
            for name, (files, verdict, where, suspects) in data["imports"].items()
        },
        shared=frozenset(paths[number] for number in data["shared"]),
    )
