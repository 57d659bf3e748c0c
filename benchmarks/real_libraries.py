"""Audits the imports of published libraries, each in an environment of its own, without a GPU.

The libraries are those of ``real_libraries.toml``. Each is installed beside torch and what it
needs, and its top package is imported by a fresh interpreter under ``python -m pytest_cudafork
run`` on a phantom with a GPU. If that initializes CUDA, so does every module of it, and no more is
asked. Otherwise ``python -m pytest_cudafork imports`` looks at the packages of the list, every
module in a process of its own; of each line that it names, the first module that reaches it is
imported once more by a fresh interpreter, which must name the same line. Prints a table of what
came of them, the lines with the number of modules that reach each, and a last line of JSON.

    python benchmarks/real_libraries.py --folder build/releases --save
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from arguments import above_zero, some
from release_environments import CannotInstallError, Release, environment
from release_processes import started, written
from release_rows import GPU, tables
from release_verdicts import shortened, statement
from results_file import parser, publish, table

TOPIC = "real_libraries"
LIST = Path(__file__).resolve().with_name("real_libraries.toml")
TOUCHING = ("touches", "touches, then fails to import", "touches, then crashes")
EVERY = "every module"
HEADER = ("release", "modules", "clean", "initialize CUDA", "not importable here", "other")


@dataclass(frozen=True)
class Library:
    """A release, the packages of it that are audited, and the one that they all import first."""

    release: Release
    imports: str
    top: str

    @property
    def name(self) -> str:
        """Return the release in words."""
        return f"{self.release.package} {self.release.version}"


@dataclass(frozen=True)
class Line:
    """A line that initializes CUDA.

    Attributes:
        place: its file and number.
        code: what it says.
        modules: those whose import reaches it, in order of their names.
        again: what a fresh interpreter named that imported the first of them.

    """

    place: str
    code: str
    modules: tuple[str, ...]
    again: str = ""

    @property
    def words(self) -> str:
        """Return the line with who reaches it, and whether it was seen twice."""
        number, first = len(self.modules), self.modules[0]
        reached = f"1 module, `{first}`" if number == 1 else f"{number} modules, as `{first}`"
        same = "seen" if self.again == self.place else f"NOT seen, but {self.again or 'nothing'},"
        return f"`{self.place}`: `{self.code}`: {reached}; {same} by a fresh interpreter"


@dataclass(frozen=True)
class Found:
    """What an audit said: how many modules had which verdict, and who reaches which line."""

    library: Library
    verdicts: Mapping[str, int]
    lines: Sequence[Line]
    why_not: str = ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Audit, and show or keep the outcome; 1 if no library could be audited."""
    made = _parser()
    options = made.parse_args(arguments)
    start = time.monotonic()
    listed = read(LIST.read_text(encoding="utf-8"))
    chosen = [each for each in listed if options.only in each.name]
    some(made, "--only", options.only, chosen, [each.name for each in listed])
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        found = []
        for each in chosen:
            if time.monotonic() - start > options.limit:
                found.append(Found(each, {}, (), f"more than {options.limit:g} s had passed"))
            else:
                found.append(audit(folder, each))
    text, data = report(found)
    publish(TOPIC, "Imports of published libraries", text, data, save=options.save)
    return int(all(each.why_not for each in found))


def _parser() -> argparse.ArgumentParser:
    made = parser("Imports of published libraries.")
    made.add_argument("--only", default="", help="only releases whose name holds this word")
    made.add_argument("--folder", type=Path, help="where environments are kept")
    made.add_argument(
        "--limit", type=above_zero, default=7200.0, help="seconds after which no library is begun"
    )
    return made


def read(text: str) -> list[Library]:
    """Return the libraries of a list.

    Raises:
        ValueError: a row lacks a key, or has one that is unknown.

    """
    return [_library(row, number) for number, row in enumerate(tables(text, "library"), 1)]


def _library(row: Mapping[str, Any], number: int) -> Library:
    values = dict(row)
    try:
        imports = values.pop("imports")
        top = values.pop("top", imports.split(",")[0].split(".")[0])
        for name in ("needs", "needs_all"):
            values[name] = tuple(values.get(name, ()))
        values["environment"] = tuple(sorted(values.get("environment", {}).items()))
        return Library(Release(**values), imports, top)
    except (KeyError, TypeError) as error:
        raise ValueError(f"library {number}: {error}") from error


def audit(folder: Path, library: Library) -> Found:
    """Install a release and audit its imports."""
    print(f"{library.name} ...", file=sys.stderr, flush=True)
    try:
        python = environment(folder, library.release)
        top, code = _imported(python, library, library.top)
        if top:
            line = Line(shortened(top), code, (library.top,), shortened(top))
            return Found(library, {EVERY: 1}, [line])
        document = _audited(python, library)
    except (CannotInstallError, RuntimeError) as error:
        return Found(library, {}, (), str(error))
    found = judge(library, document)
    lines = []
    for line in found.lines:
        place, _ = _imported(python, library, line.modules[0])
        lines.append(replace(line, again=shortened(place)))
    return replace(found, lines=lines)


def _audited(python: Path, library: Library) -> Mapping[str, Any]:
    """Return the document of the audit.

    Raises:
        RuntimeError: there is none.

    """
    with tempfile.TemporaryDirectory() as made:
        file = Path(made, "audit.json")
        command = [str(python), "-m", "pytest_cudafork", "imports", library.imports]
        command += ["--device", GPU, "--jobs", "2", "--no-confirm", "--json", str(file)]
        end = started(command, Path(made), dict(library.release.environment))
        document = written(file)
        if document is None:
            raise RuntimeError(f"no audit: {end}")
        return document


def _imported(python: Path, library: Library, module: str) -> tuple[str, str]:
    """Return the line that a fresh interpreter names which imports a module, and what it says.

    Raises:
        RuntimeError: the check wrote no report.

    """
    with tempfile.TemporaryDirectory() as made:
        program, file = Path(made, "program.py"), Path(made, "report.json")
        program.write_text(f"import {module}\n", encoding="utf-8")
        watch = ["-m", "pytest_cudafork", "run", "--device", GPU, "--report", str(file), "--json"]
        command = [str(python), *watch, str(program)]
        end = started(command, Path(made), dict(library.release.environment))
        document = written(file)
        if document is None:
            raise RuntimeError(f"no report of `import {module}`: {end}")
        place = document["touches"][0]["culprit"] if document["touches"] else ""
        return place, statement(place)


def judge(library: Library, document: Mapping[str, Any]) -> Found:
    """Return what a document says, its lines by the number of modules that reach them."""
    modules = document["modules"]
    reached: dict[str, list[str]] = {}
    for module in modules:
        if module["verdict"] in TOUCHING:
            reached.setdefault(module["where"], []).append(module["module"])
    by_number = sorted(reached.items(), key=lambda item: -len(item[1]))
    lines = [
        Line(shortened(place), statement(place), tuple(sorted(names))) for place, names in by_number
    ]
    return Found(library, Counter(module["verdict"] for module in modules), lines)


def report(found: Sequence[Found]) -> tuple[str, dict[str, Any]]:
    """Return the tables, and the data for the line of JSON."""
    parts = [table(HEADER, [_row(each) for each in found])]
    for each in found:
        lines = [f"- {line.words}" for line in each.lines]
        if each.why_not:
            lines = [f"- not audited: {each.why_not}"]
        if lines:
            parts.append(f"## {each.library.name}\n\n" + "\n".join(lines))
    data = {
        each.library.name: {
            "verdicts": dict(each.verdicts),
            "lines": {line.place: [len(line.modules), line.again] for line in each.lines},
            "why_not": each.why_not,
        }
        for each in found
    }
    return "\n\n".join(parts), {"libraries": data}


def _row(each: Found) -> tuple[str, ...]:
    if each.why_not:
        return (each.library.name, *["not audited"] * (len(HEADER) - 1))
    if EVERY in each.verdicts:
        return (each.library.name, EVERY, "none", EVERY, "-", "-")
    total = sum(each.verdicts.values())
    clean, absent = each.verdicts.get("clean", 0), each.verdicts.get("not importable", 0)
    touching = sum(each.verdicts.get(verdict, 0) for verdict in TOUCHING)
    numbers = (total, clean, touching, absent, total - clean - touching - absent)
    return (each.library.name, *map(str, numbers))


if __name__ == "__main__":
    sys.exit(main())
