"""Compares a session in one process with the same session isolated, line by line."""

from __future__ import annotations

import difflib
import functools
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tests.support import interpreters

CORPUS = Path(__file__).parents[1] / "sessions" / "isolate" / "corpus"
TIME_LIMIT = 240
"""Seconds for one session, which takes some seconds; a deadlock takes them all."""

_VARIABLES = {
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "COLUMNS": "400",
}
_NOISE = [
    # what every isolated test has, on purpose
    (r" \((?:fork|forkserver|spawn)(?:: [^)]*)?\)", ""),
    (r" {2,}\[ *[\d/]+%?\]", " [PROGRESS]"),
    (r" {2,}\d+(?:\.\d+)?(?:ms|s|us|μs)$", " [TIME]"),
    (r"\boldfd=\d+", "oldfd=NUMBER"),
    (r"0x[0-9a-f]{6,}", "0xADDRESS"),
    (r"in \d+\.\d+s(?: \([^)]*\))?", "in SECONDS"),
    (r"={4,}", "==="),
    (r"\(cache from [\d:]+ ago", "(cache from AGE ago"),
    (r"^\d+\.\d+s (setup|call|teardown)\b", r"SECONDS \1"),
    (r"pytest-of-[^/]+/pytest-\d+", "BASETEMP"),
    (r"\bsession-[0-9a-f]{8}\b", "SESSION"),
    (r"\b(Thread-|tid |pid )\d+", r"\1NUMBER"),
    (r'"last_cache_date_str": .*', "DATE"),
    (r"[ \t]+$", ""),
]
INHERENT = (
    # A process that runs one test sets up what it needs, and tears it down again.
    r"^ *(SETUP|TEARDOWN) +[SPMC] ",
    # The session's temporary directory is made before the first process, not on first use.
    r"^(BASETEMP|pytest-of-\w+/pytest-current)$",
    # With -v the header says by which method tests are isolated, and where that was set.
    r"^cuda-fork-isolate: ",
)
"""Lines in which the two may differ, with the reason; told in docs/explanation/isolation.md."""

_RULE = re.compile(r"^([=_~+!-])\1{2,} (.*?) \1{3,}$")
_TIMES = ("time", "timestamp", "hostname")


@dataclass(frozen=True)
class Seen:
    """All that a session leaves behind, without what differs from one run to the next.

    ``status`` is the exit status and the names of temporary directories.
    """

    status: list[str]
    stdout: list[str]
    stderr: list[str]
    junit: list[str]
    files: list[str]


class Sessions:
    """Runs sessions over the files of a directory.

    Args:
        path: The directory.
        options: Arguments of every session.
        env: More environment variables.
        plugins: Names of modules of other plugins.
        keeps: Names of files that a session writes, to be compared as well.

    """

    def __init__(
        self,
        path: Path,
        *options: str,
        env: Mapping[str, str] | None = None,
        plugins: Sequence[str] = (),
        keeps: Sequence[str] = (),
    ) -> None:
        self._path = path
        self._env = {**os.environ, **_VARIABLES, "HOME": str(path), **(env or {})}
        self._env.pop("PYTEST_CURRENT_TEST", None)
        self._command = [sys.executable, "-m", "pytest", "-p", "pytest_cudafork.plugin"]
        for plugin in plugins:
            self._command += ["-p", plugin]
        self._options = options
        self._keeps = keeps

    def run(self, method: str, *args: str) -> Seen:
        """Run a session with all tests isolated by ``method``, or in one process if it is ""."""
        path = self._path
        junit = path / "junit.xml"
        for name in ("junit.xml", *self._keeps):
            (path / name).unlink(missing_ok=True)
        temporary = path.parent / f"session-{os.urandom(4).hex()}"
        temporary.mkdir()
        # not through an option: the arguments of the sessions are to be the same
        env = {
            **self._env,
            "PYTEST_CUDA_FORK_ISOLATE": method or "none",
            "PYTEST_DEBUG_TEMPROOT": str(temporary),
        }
        # not pytester.run, which insists on UTF-8
        result = interpreters.run(
            [*self._command, f"--junitxml={junit}", *self._options, *args],
            env=env,
            cwd=path,
            errors="backslashreplace",
            timeout=TIME_LIMIT,
        )
        made = sorted(str(found.relative_to(temporary)) for found in temporary.glob("*/*"))
        shutil.rmtree(temporary, ignore_errors=True)
        return Seen(
            [str(result.returncode), *(_without_noise(name) for name in made)],
            _lines(result.stdout),
            _lines(result.stderr),
            _junit(junit),
            [*_cache(path / ".pytest_cache" / "v"), *_texts(path / name for name in self._keeps)],
        )

    def history(self, method: str, *runs: Sequence[str]) -> list[Seen]:
        """Run one session after the other; the first finds no cache."""
        shutil.rmtree(self._path / ".pytest_cache", ignore_errors=True)
        shutil.rmtree(self._path / ".hypothesis", ignore_errors=True)
        return [self.run(method, *args) for args in runs]


def use_corpus(path: Path, *names: str) -> None:
    """Copy test modules of the corpus into a directory."""
    for name in names:
        text = (CORPUS / f"{name}.py.txt").read_text(encoding="utf-8")
        (path / f"test_{name}.py").write_text(text, encoding="utf-8")


def differences(expected: Seen, seen: Seen, known: Sequence[str] = ()) -> str:
    """Return how two sessions differ, as a diff; "" if they do not.

    Args:
        expected: The session in one process.
        seen: The isolated one.
        known: Regular expressions; lines that they match are left out on both sides.

    """
    parts: list[str] = []
    for field in fields(Seen):
        left, right = getattr(expected, field.name), getattr(seen, field.name)
        left, right = (_without([*INHERENT, *known], lines) for lines in (left, right))
        parts += difflib.unified_diff(
            left, right, f"{field.name} in one process", f"{field.name} isolated", lineterm="", n=2
        )
    return "\n".join(parts)


def _without(known: Sequence[str], lines: list[str]) -> list[str]:
    return [line for line in lines if not any(re.search(one, line) for one in known)]


def _lines(text: str) -> list[str]:
    """Return lines without noise; the rows of ``--durations``, sorted by time, sorted by name."""
    clean = [_without_noise(line) for line in text.split("\n")]
    rows: list[str] = []
    result: list[str] = []
    for line in [*clean, ""]:
        if line.startswith("SECONDS "):
            rows.append(line)
            continue
        result += sorted(rows)
        rows = []
        result.append(line)
    return result[:-1]


# Most lines of a session come again, in its files and in the sessions that it is compared with.
@functools.lru_cache(maxsize=20_000)
def _without_noise(text: str) -> str:
    for pattern, replacement in _NOISE:
        text = re.sub(pattern, replacement, text)
    rule = _RULE.match(text)
    return f"{rule[1] * 3} {rule[2]} {rule[1] * 3}" if rule else text


def _junit(path: Path) -> list[str]:
    if not path.exists():
        return ["no file"]
    lines: list[str] = []
    _add_element(ElementTree.parse(path).getroot(), "", lines)
    return lines


def _add_element(element: ElementTree.Element, indent: str, lines: list[str]) -> None:
    for name in _TIMES:
        element.attrib.pop(name, None)
    attributes = " ".join(f"{name}={value!r}" for name, value in sorted(element.attrib.items()))
    lines += [_without_noise(line) for line in f"{indent}<{element.tag} {attributes}".split("\n")]
    if element.text and element.text.strip():
        lines += [f"{indent}  {_without_noise(line)}" for line in element.text.split("\n")]
    for child in element:
        _add_element(child, indent + "  ", lines)


def _cache(path: Path) -> list[str]:
    lines = []
    for file in sorted(path.rglob("*")):
        if file.is_file():
            value: Any = json.loads(file.read_text(encoding="utf-8"))
            text = json.dumps(value, indent=1, sort_keys=True)
            lines += [str(file.relative_to(path)), *text.split("\n")]
    return [_without_noise(line) for line in lines]


def _texts(paths: Iterable[Path]) -> list[str]:
    lines = []
    for path in paths:
        text = path.read_text(encoding="utf-8") if path.exists() else "no file"
        lines += [path.name, *map(_without_noise, text.split("\n"))]
    return lines
