"""How the coverage of code that ran in children arrives in the session's measurement.

Used in every process; where coverage.py is not loaded it does nothing and imports nothing.

A child measures with the parent's settings. What it measured stays in its memory, is sent to the
parent as plain data, and is added there to the data of the running measurement. So it is in the
result whoever measures (``coverage run``, pytest-cov, pytest-cov in a worker of pytest-xdist), no
file is left behind by a child that dies, and nothing has to be combined afterwards.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from pytest_cudafork.compat import coverage_internals
from pytest_cudafork.compat.unpatched import os


class Basket:
    """Takes what coverage's collector flushes, in the place of its ``CoverageData``."""

    def __init__(self) -> None:
        self._context = ""
        self.lines: dict[tuple[str, str], set[int]] = {}
        self.arcs: dict[tuple[str, str], set[tuple[int, int]]] = {}
        self.tracers: dict[str, str] = {}

    def set_context(self, context: str | None) -> str | None:
        """Name the context of what is added next; return the one before."""
        before, self._context = self._context, context or ""
        return before or None

    def add_lines(self, lines: Mapping[str, Iterable[int]]) -> None:
        """Add executed lines by file."""
        for name, numbers in lines.items():
            self.lines.setdefault((self._context, name), set()).update(numbers)

    def add_arcs(self, arcs: Mapping[str, Iterable[tuple[int, int]]]) -> None:
        """Add executed pairs of lines by file."""
        for name, pairs in arcs.items():
            self.arcs.setdefault((self._context, name), set()).update(pairs)

    def add_file_tracers(self, tracers: Mapping[str, str]) -> None:
        """Add the names of the plugins that measured files that are no Python."""
        self.tracers.update(tracers)

    def take(self) -> dict[str, Any] | None:
        """Return all of it as plain data, and start anew; None if there is nothing."""
        if not (self.lines or self.arcs):
            return None
        data = {
            "lines": [[*key, sorted(numbers)] for key, numbers in self.lines.items()],
            "arcs": [[*key, sorted(pairs)] for key, pairs in self.arcs.items()],
            "tracers": dict(self.tracers),
        }
        self.lines.clear()
        self.arcs.clear()
        self.tracers.clear()
        return data

    def add(self, data: Mapping[str, Any]) -> None:
        """Add what ``take`` returned in another process.

        Raises:
            LookupError: It is something else.
            TypeError: Likewise.
            ValueError: Likewise.

        """
        before = self._context
        _add(self, data)
        self._context = before


def current() -> Any:
    """Return the running measurement of this process (``coverage.Coverage``), or None."""
    module = sys.modules.get("coverage")
    of_class = getattr(module, "Coverage", None)
    return None if of_class is None else of_class.current()


def settings() -> dict[str, Any] | None:
    """Return, in the parent, what a process that is not forked needs to measure as this one does.

    Plain data for ``begin``; None where nothing is measured.
    """
    measurement = current()
    if measurement is None:
        return None
    files = sys.modules["coverage.files"]
    return {
        "config": {
            name: value for name, value in vars(measurement.config).items() if _is_plain(value)
        },
        "suffix": coverage_internals.data_suffix(measurement),
        "directory": files.relative_directory(),
    }


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_plain(part) for pair in value.items() for part in pair)
    if isinstance(value, list | tuple):
        return all(_is_plain(part) for part in value)
    return value is None or type(value) in (bool, int, float, str)


class Once:
    """Something that one of several forked processes gets, whichever asks first."""

    def __init__(self) -> None:
        self._read, write = os.pipe()
        os.write(write, b"1")
        os.close(write)

    def take(self) -> bool:
        """Whether this process is the first that asks."""
        try:
            return bool(os.read(self._read, 1))
        except OSError:  # a test has closed it
            return False


class ChildCoverage:
    """The measurement of one child, from its start to its end."""

    def __init__(self, measurement: Any) -> None:
        self._measurement = measurement
        self._pid = os.getpid()
        coverage_internals.replace_save(measurement, self._save_if_forked)
        self._basket = Basket()
        self._forked_data = coverage_internals.redirect_collector(measurement, self._basket)
        """Kept: its end would close a database that belongs to the parent."""

    def first_adds(self, data: Mapping[str, Any] | None, first: Once | None) -> None:
        """Add what the process that forks children has measured, in the first of them."""
        if data is not None and first is not None and first.take():
            self._basket.add(data)

    def _save_if_forked(self) -> None:
        """Save nothing in this process, which sends all of it; one that a test forks cannot.

        That one writes a file of its own, with what it has measured, as it does in one process.
        """
        if os.getpid() == self._pid:
            return
        data = self.take()
        # Without new data a forked process would take the file of its parent for its own.
        if data is not None:
            _add(coverage_internals.own_data(self._measurement), data)
            coverage_internals.save_data(self._measurement)

    def take(self) -> dict[str, Any] | None:
        """Return what was measured since the last time, as plain data, or None."""
        coverage_internals.flush(self._measurement)
        data = self._basket.take()
        if data is not None:
            unmatched = coverage_internals.packages_never_imported(self._measurement)
            data["unmatched"] = [str(one) for one in unmatched]
        return data


def begin(wanted: Mapping[str, Any] | None = None) -> ChildCoverage | None:
    """Begin to measure in a child, right after its start; None where nothing is measured.

    Args:
        wanted: What ``settings`` returned in the parent, for a process that was not forked from it.
            A forked one goes on with the measurement that it inherited.

    """
    measurement = current()
    if measurement is None and wanted is not None:
        measurement = _start(wanted)
    return None if measurement is None else ChildCoverage(measurement)


def _start(wanted: Mapping[str, Any]) -> Any:
    """Start a measurement with the parent's settings."""
    import importlib
    import warnings

    # not by name: coverage is no dependency, and has no stubs where it is not installed
    measurement: Any = importlib.import_module("coverage").Coverage(
        data_suffix=wanted["suffix"], config_file=False, check_preimported=False, messages=False
    )
    vars(measurement.config).update(wanted["config"], sigterm=False)
    coverage_internals.silence(measurement)
    here = os.getcwd()
    os.chdir(wanted["directory"])  # relative names mean what they mean in the parent
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the parent has told what coverage warns of
            measurement.start()
    finally:
        os.chdir(here)
    return measurement


class ParentCoverage:
    """Gathers what the children of a session have measured."""

    def __init__(self) -> None:
        self._basket = Basket()
        self._unmatched: set[str] | None = None

    def add(self, data: Mapping[str, Any]) -> None:
        """Add what a child sent (see ``ChildCoverage.take``).

        Raises:
            LookupError: It is something else.
            TypeError: Likewise.
            ValueError: Likewise.

        """
        self._basket.add(data)
        unmatched = set(data.get("unmatched", ()))
        self._unmatched = unmatched if self._unmatched is None else self._unmatched & unmatched

    def finish(self) -> None:
        """Add all of it to the running measurement; before that one is stopped."""
        measurement = current()
        data = self._basket.take()
        if measurement is None or data is None:
            return
        left = coverage_internals.packages_never_imported(measurement)
        if left and self._unmatched is not None:
            # else it would warn that a package was never imported, which the children have
            left[:] = [name for name in left if name in self._unmatched]
        # nor that nothing was measured, where the parent itself has measured nothing
        warns = coverage_internals.warn_of_no_data(measurement, False)
        target = measurement.get_data()
        context = coverage_internals.current_context(target)
        _add(target, data)
        target.set_context(context)
        coverage_internals.warn_of_no_data(measurement, warns)


def _add(target: Any, data: Mapping[str, Any]) -> None:
    """Add plain data to a ``Basket`` or a ``CoverageData``, whose context is another afterwards.

    By its methods for new data and not by ``update``, which leaves the hash as it is by which
    ``combine`` takes the data of two processes for the same.
    """
    for context, name, numbers in data["lines"]:
        target.set_context(context)
        target.add_lines({name: numbers})
    for context, name, pairs in data["arcs"]:
        target.set_context(context)
        target.add_arcs({name: [(first, second) for first, second in pairs]})
    target.add_file_tracers(data["tracers"])


def gathered(config: pytest.Config) -> ParentCoverage:
    """Return what the children of a session have measured so far."""
    if GATHERED not in config.stash:
        config.stash[GATHERED] = ParentCoverage()
    return config.stash[GATHERED]


GATHERED = pytest.StashKey[ParentCoverage]()
