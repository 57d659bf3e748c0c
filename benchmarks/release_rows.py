"""Reads the list of pairs of releases: ``release_pairs.toml``, which says what its keys mean."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from release_environments import Release

LIST = Path(__file__).resolve().with_name("release_pairs.toml")
GPU = "phantom:sm_90"
"""The device of a row that names none: the phantom with a GPU."""


@dataclass(frozen=True)
class Pair:
    """A release with a bug and one with its repair; a row of the list."""

    package: str
    bug: str
    before: str
    after: str
    run: str
    culprit: tuple[str, str]
    device: str = GPU
    needs: tuple[str, ...] = ()
    needs_after: tuple[str, ...] = ()
    needs_all: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    build: bool = False

    def release(self, version: str) -> Release:
        """Return what is to be installed for one of the two releases."""
        needs = self.needs + (self.needs_after if version == self.after else ())
        return Release(self.package, version, needs, self.needs_all, self.build, self.environment)


def tables(text: str, name: str) -> list[dict[str, Any]]:
    """Return the tables of a list of this name."""
    rows: list[dict[str, Any]] = tomllib.loads(text).get(name, [])
    return rows


def read(text: str) -> list[Pair]:
    """Return the pairs of a list.

    Raises:
        ValueError: a row lacks a key, or has one that is unknown or of another kind.

    """
    return [_pair(row, number) for number, row in enumerate(tables(text, "pair"), 1)]


def _pair(row: Mapping[str, Any], number: int) -> Pair:
    known = {each.name: each for each in fields(Pair)}
    required = {"package", "bug", "before", "after", "run", "culprit"}
    wrong = sorted((set(row) - set(known)) | (required - set(row)))
    if wrong:
        raise ValueError(f"pair {number}: unknown or missing: {', '.join(wrong)}")
    values = dict(row)
    culprit = values["culprit"]
    if not (isinstance(culprit, list) and len(culprit) == 2 and all(map(_is_text, culprit))):
        raise ValueError(f"pair {number}: culprit is a file and a statement, not {culprit!r}")
    for name in ("culprit", "needs", "needs_after", "needs_all"):
        values[name] = tuple(values.get(name, ()))
    values["environment"] = tuple(sorted(values.get("environment", {}).items()))
    texts = [values[name] for name in ("package", "bug", "before", "after", "run")]
    listed = [
        *values["needs"],
        *values["needs_after"],
        *values["needs_all"],
        *sum(values["environment"], ()),
    ]
    is_text = all(map(_is_text, [*texts, *listed]))
    if not (is_text and isinstance(values.get("build", False), bool)):
        raise ValueError(f"pair {number}: a value is of another kind than its key says")
    return Pair(**values)


def _is_text(value: object) -> bool:
    return isinstance(value, str)
