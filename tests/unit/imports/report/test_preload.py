"""What a process may import before it is forked, in words."""

from __future__ import annotations

from typing import Any, ClassVar, cast

import pytest

from pytest_cudafork.imports.report import preload
from pytest_cudafork.imports.report.preload import preload_lines, widest
from pytest_cudafork.imports.values.left_behind import WHOLE, EnvironmentRead, RunningThread, Traces
from pytest_cudafork.imports.values.records import ImportRecord, ImportVerdict


class Graph:
    """Who imports whom, said by a test."""

    links: ClassVar = {"pkg.api": ["pkg.a", "pkg.b"], "pkg.b": ["pkg.c"], "pkg.bad": ["pkg.c"]}

    def module_at(self, path: str) -> str:
        """Return the module of a file of the package."""
        return "pkg.a" if path.startswith("/base/") else ""


class Findings:
    """Records, and what is known beside them."""

    graph = Graph()
    base = "/base"

    def __init__(self, *records: ImportRecord) -> None:
        self.main = records


def record(name: str, **about: Any) -> ImportRecord:
    fields: dict[str, Any] = {"verdict": ImportVerdict.CLEAN, "traces": Traces(), **about}
    return ImportRecord(module=f"pkg.{name}", package="pkg", **fields)


def lines(*records: ImportRecord, full: bool = False) -> list[str]:
    found = preload_lines(cast("Any", Findings(*records)), full=full)
    return [line.text for line in found]


def test_few_modules_that_import_all_are_named() -> None:
    names = ["pkg.a", "pkg.api", "pkg.b", "pkg.c", "pkg.d"]
    assert widest(Graph.links, names) == ["pkg.api", "pkg.d"]
    assert widest({}, []) == []
    assert lines(record("a"), record("api"), record("b")) == [
        "safe to import before forks: 3 of 3 modules; these import them all: pkg.api"
    ]


def test_what_is_not_safe_is_told_with_the_reason() -> None:
    thread = RunningThread("exporter", "/base/pkg/m.py:3", True)
    assert lines(
        record("m", running=(thread,)),
        record("n", running=(thread,)),
        record("no", verdict=ImportVerdict.NOT_IMPORTABLE, reason="ImportError: no"),
    ) == [
        "safe to import before forks: 0 of 3 modules",
        "not before forks: pkg.m, pkg.n: leaves 1 thread running "
        "(daemon exporter, started at pkg/m.py:3)",
        "not before forks: pkg.no: cannot be imported: ImportError: no",
    ]


def test_what_is_to_be_heeded_comes_with_its_modules_and_the_packages_own_lines_first() -> None:
    both = Traces(
        (
            EnvironmentRead("LEVEL", "/base/pkg/a.py:2", is_set=False),
            EnvironmentRead(WHOLE, "/elsewhere/lib.py:9", is_set=True),
            EnvironmentRead("HOME", "/elsewhere/lib.py:4", is_set=True),
        ),
        ("socket", "socket"),
        ("pool",),
    )
    one = both._replace(environment=both.environment[1:], descriptors=(), native_threads=())
    assert lines(record("a", traces=both), record("b", traces=one))[1:] == [
        "heed: forks share an open descriptor (socket): pkg.a",
        "heed: forks lack threads of C code (pool): pkg.a",
        "read from the environment by imports (a change after that goes unnoticed):",
        "  LEVEL (not set here), pkg/a.py:2: pkg.a",
        "  all of it, copied, /elsewhere/lib.py:9: pkg.a, pkg.b",
        "  HOME, /elsewhere/lib.py:4: pkg.a, pkg.b",
    ]


def test_much_is_cut_unless_all_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preload, "_MOST_LINES", 2)
    records = [
        record(f"m{n}", verdict=ImportVerdict.NOT_IMPORTABLE, reason=f"Error: {n}")
        for n in range(4)
    ]
    safe = [record(f"s{n}") for n in range(8)]
    short = lines(*records, *safe)
    assert short[-1] == "... and 2 more (-v shows them)"
    assert short[0].endswith("pkg.s4 and 3 more (-v names them)")
    full = lines(*records, *safe, full=True)
    assert len(full) == 5
    assert "pkg.s7" in full[0]
