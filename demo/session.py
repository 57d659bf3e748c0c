"""Runs one session of the demo in a process of its own, and reads what its ledger holds."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from demo.cases import Case, Library
from pytest_cudafork.observe.base.ledger import Ledger
from pytest_cudafork.observe.base.records import Record
from pytest_cudafork.observe.story.advice import what_the_line_is
from pytest_cudafork.observe.story.paths import short_path
from pytest_cudafork.observe.story.source import source_line
from pytest_cudafork.observe.story.stories import History
from pytest_cudafork.observe.story.touch import Frame, Touch, culprit_of, frames_from
from tests.specimens.specimen import MARKER, Form

TIME_LIMIT = 120
"""Seconds for one session; the slowest imports much of torch and takes a few."""

_ROOT = Path(__file__).resolve().parents[1]
_USAGE_ERROR = 4
_NOT_OBSERVABLE = "cuda-fork: not observable: "
# What would change a session: settings of the user's own, of an outer session, of the specimens.
_FOREIGN = (
    *("PYTEST_", "_CUDAFORK_", "CUDA_INJECTION", "CUDA_VISIBLE_", "PYTORCH_NVML_", "TRITON_"),
    *("ENGINE_", "KINETO_", "VLLM_", "COV_CORE_", "FORCE_COLOR", "PY_COLORS"),
)


@dataclass(frozen=True)
class Place:
    """A line that touched CUDA; ``consequence`` is what came of it, in words, or ""."""

    where: str
    source: str
    what: str
    entry: str
    consequence: str = ""


@dataclass(frozen=True)
class Seen:
    """What one session showed.

    ``missing`` is why there was no session, ``limits`` what it could not see.
    ``status`` is pytest's exit status, or None without a session and when it took longer than
    ``TIME_LIMIT`` seconds.
    """

    missing: str = ""
    status: int | None = None
    places: tuple[Place, ...] = ()
    touches: int = 0
    refused: int = 0
    poisoned: int = 0
    limits: tuple[str, ...] = ()
    output: str = ""


def run(case: Case) -> Seen:
    """Run a copy of what the case shows, as a user would, and read what was recorded."""
    missing = [library.distribution for library in case.needs if not _installed(library)]
    if missing:
        return Seen(missing=f"{', '.join(missing)} not installed")
    with tempfile.TemporaryDirectory(prefix="pytest-cudafork-demo-") as name:
        folder = Path(name).resolve()
        copy = folder / "copy"
        if isinstance(case.source, Form):
            case.source.copy_to(copy)
        elif isinstance(case.source, Path):
            shutil.copytree(
                case.source, copy, ignore=shutil.ignore_patterns("__pycache__", "*.toml")
            )
        else:
            copy.mkdir()
            (copy / "test_import.py").write_text(case.source, encoding="utf-8")
        (copy / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")  # look no further upwards
        ledger = folder / "ledger.jsonl"
        status, output = _pytest(case, copy, ledger, folder / "output")
        records = Ledger(str(ledger)).reader().new() if ledger.exists() else []
        return read(case, copy, records, status, output)


def _installed(library: Library) -> bool:
    try:
        return importlib.util.find_spec(library.module) is not None
    except (ImportError, ValueError):
        return False


def version_of(distribution: str) -> str:
    """Return the installed release, or "" where it is not installed or says nothing of it."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _pytest(case: Case, copy: Path, ledger: Path, output: Path) -> tuple[int | None, str]:
    command = [
        *(sys.executable, "-m", "pytest", "-p", "pytest_cudafork.plugin", "-p", "no:cacheprovider"),
        f"--cuda-fork-check={case.level}",
        f"--cuda-fork-device={case.device}",
        f"--cuda-fork-ledger={ledger}",
        ".",
    ]
    # Into a file: a child that outlives its session would keep a pipe open.
    with output.open("wb") as file:
        try:
            status: int | None = subprocess.run(
                command,
                cwd=copy,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=TIME_LIMIT,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            status = None
    return status, output.read_text(encoding="utf-8", errors="replace")


def _environment() -> dict[str, str]:
    """Return this process's environment without what would change a session.

    No other plugins are loaded: they are not what is shown, and some cost more than the session.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    paths = [str(_ROOT), *filter(None, kept.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "COLUMNS": "100",
    }


def read(case: Case, copy: Path, records: list[Record], status: int | None, output: str) -> Seen:
    """Make the facts of a session from its ledger.

    What the ledger does not hold is taken from the output: why nothing could be seen.
    """
    history = History(records)
    refused = [r for r in records if r["k"] == "fork" and r.get("verdict") == "guarded"]
    poisoned = [touch for touch in history.touches if touch.poisoned]
    if refused or poisoned:
        places = [*_before_refused(history, refused, copy), *_poisoned(history, poisoned, copy)]
    elif case.level == "touch":
        places = [_place(touch, copy) for touch in history.touches]
    else:
        places = []  # touches that no fork followed are not what such a case is about
    limits = [
        line.removeprefix(_NOT_OBSERVABLE)
        for line in output.splitlines()
        if line.startswith(_NOT_OBSERVABLE)
    ]
    if status == _USAGE_ERROR:
        limits = [line for line in output.splitlines() if line.strip()][-1:]
    return Seen(
        status=status,
        places=_distinct(places),
        touches=len(history.touches),
        refused=len(refused),
        poisoned=len(poisoned),
        limits=tuple(limits),
        output=output,
    )


def _before_refused(history: History, refused: list[Record], copy: Path) -> list[Place]:
    places = []
    for record in refused:
        first = history.initializer(int(record["pid"]))
        forker = _where(culprit_of(frames_from(record.get("stack", ()))), copy)
        if first is not None:
            places.append(_place(first, copy, f", so the fork at {forker} is refused"))
    return places


def _poisoned(history: History, poisoned: list[Touch], copy: Path) -> list[Place]:
    places = []
    for touch in poisoned:
        first = history.poisoner(touch)
        parent = _where(first.culprit, copy) if first is not None else "a line that was not seen"
        places.append(
            _place(touch, copy, f" in a forked child, whose parent touched CUDA at {parent}")
        )
    return places


def _place(touch: Touch, copy: Path, consequence: str = "") -> Place:
    culprit = touch.culprit
    source = source_line(culprit.filename, culprit.lineno) if culprit else ""
    source = source.removesuffix(MARKER).rstrip()
    return Place(_where(culprit, copy), source, what_the_line_is(touch), touch.entry, consequence)


def _where(frame: Frame | None, copy: Path) -> str:
    if frame is None:
        return "no Python stack could be had"
    return f"{short_path(frame.filename, str(copy))}:{frame.lineno}"


def _distinct(places: Iterable[Place]) -> tuple[Place, ...]:
    """The first at each line."""
    first: dict[str, Place] = {}
    for place in places:
        first.setdefault(place.where, place)
    return tuple(first.values())
