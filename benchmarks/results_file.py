"""Shows and keeps a benchmark's outcome, and reads what was kept: a table, JSON, a results file.

A record is never written over: a second one of a day has ``_2`` after its date.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from arguments import at_least, has_gpu

PROJECT = Path(__file__).resolve().parent.parent
RESULTS = PROJECT / "benchmarks" / "results"
_PACKAGES = ("pytest-cudafork", "pytest", "pytest-xdist", "pluggy", "torch")
_WHEN = re.compile(r"_(\d{4}-\d\d-\d\d)(?:_(\d+))?\.md$")


_BEFORE = round(os.getloadavg()[0], 2)


def parser(description: str, rounds: int | None = None, topic: str = "") -> argparse.ArgumentParser:
    """Return a parser with the options that all benchmarks take.

    Args:
        description: what ``--help`` begins with.
        rounds: the default of ``--rounds``; None for a benchmark that has none.
        topic: the default of ``--topic``; "" for a benchmark whose records have one name.

    """
    made = argparse.ArgumentParser(description=description)
    if rounds is not None:
        made.add_argument("--rounds", type=at_least(1), default=rounds, help=f"default {rounds}")
    if topic:
        made.add_argument("--topic", default=topic, help=f"name of the record; default {topic}")
    made.add_argument("--save", action="store_true", help=f"also write a file in {RESULTS.name}/")
    return made


def versions(more: Sequence[str] = ()) -> dict[str, str]:
    """Return the versions of what was measured, and of more; "none" for what is not installed."""
    found = {"python": platform.python_version()}
    for package in (*_PACKAGES, *more):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "none"
    return found


def machine() -> dict[str, Any]:
    """Return what this machine is, and how busy it was before this process began and is now."""
    found: dict[str, Any] = {
        "revision": revision(),
        "processor": processor(Path("/proc/cpuinfo").read_text(encoding="utf-8")),
        "cores": len(os.sched_getaffinity(0)),
        "load_before": _BEFORE,
        "load": [round(one, 2) for one in os.getloadavg()],
        "system": platform.release(),
    }
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        done = subprocess.run(query, capture_output=True, text=True, check=False)
        found["gpus"] = done.stdout.split("\n")[:-1] if done.returncode == 0 else []
    return found


def revision() -> str:
    """Return the commit that is measured, and whether files of it were changed; else why not."""
    git = shutil.which("git")
    if git is None or not (PROJECT / ".git").exists():
        return "not known: no git repository"
    asked = (("rev-parse", "--short", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
    said = []
    for words in asked:
        done = subprocess.run(
            [git, "-C", str(PROJECT), *words], capture_output=True, text=True, check=False
        )
        if done.returncode:
            return f"not known: git {words[0]} ended with {done.returncode}"
        said.append(done.stdout.strip())
    return f"{said[0]}, changed" if said[1] else said[0]


def processor(text: str) -> str:
    """Return the name of the processor, of what ``/proc/cpuinfo`` says."""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table, the first column to the left, numbers to the right."""
    # a rule of a column has a dash and a colon
    widths = [max(2, *(len(row[i]) for row in [header, *rows])) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return f"| {' | '.join(padded)} |"

    rule = [("-" * width if i == 0 else "-" * (width - 1) + ":") for i, width in enumerate(widths)]
    return "\n".join([line(header), line(rule), *(line(row) for row in rows)])


def publish(
    topic: str,
    title: str,
    text: str,
    data: Mapping[str, Any],
    *,
    save: bool,
    packages: Sequence[str] = (),
) -> None:
    """Print the table and a line of JSON; with ``save`` keep both, with machine and command.

    Args:
        topic: what the name of the record begins with.
        title: its first line.
        text: what is to be read.
        data: what is to be counted with.
        save: whether a record is written.
        packages: of which the versions are told, beside those that are told always.

    """
    device = "gpu" if has_gpu() else "cpu"
    today, found, on = datetime.date.today().isoformat(), versions(packages), machine()
    told = {"topic": topic, "device": device, "date": today, "versions": found, "machine": on}
    last = {**told, **data}
    print(text)
    if save:
        RESULTS.mkdir(exist_ok=True)
        file = _unused(RESULTS, f"{topic}_{device}_{today}")
        numbers = ", ".join(f"{name} {number}" for name, number in found.items())
        where = [on["processor"], f"{on['cores']} cores", *on.get("gpus", ())]
        page = f"# {title}\n\n{today}, {device}, {', '.join(where)}, "
        page += f"load {_BEFORE:.1f} before, {on['load'][0]:.1f} at the end. {numbers}, "
        page += f"revision {on['revision']}.\n\n"
        page += f"```\n{_command()}\n```\n\n{text}\n\n```json\n{json.dumps(last)}\n```\n"
        file.write_text(page, encoding="utf-8")
        last["record"] = file.name
    print(json.dumps(last))


def _unused(folder: Path, stem: str) -> Path:
    file, number = folder / f"{stem}.md", 1
    while file.exists():
        number += 1
        file = folder / f"{stem}_{number}.md"
    return file


def _command() -> str:
    """Return what was called, from the root of the checkout."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None:
        return shlex.join(["python", "-m", spec.name.removesuffix(".__main__"), *sys.argv[1:]])
    script = Path(sys.argv[0]).resolve()
    own = script.is_relative_to(PROJECT)
    return shlex.join(
        ["python", str(script.relative_to(PROJECT)) if own else script.name, *sys.argv[1:]]
    )


def document(file: Path) -> Mapping[str, Any]:
    """Return the line of JSON of a record.

    Raises:
        ValueError: it has none.

    """
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("{"):
            found: Mapping[str, Any] = json.loads(line)
            return found
    raise ValueError(f"{file.name}: no line of JSON")


def kept(topic: str, device: str, folder: Path = RESULTS) -> list[Path]:
    """Return the records of a topic on a kind of machine, the newest first."""

    def age(file: Path) -> tuple[str, int]:
        found = _WHEN.search(file.name)
        assert found is not None
        return found[1], int(found[2] or 1)

    files = [
        file
        for file in folder.glob(f"{topic}_{device}_*.md")
        if (found := _WHEN.search(file.name)) and file.name == f"{topic}_{device}{found[0]}"
    ]
    return sorted(files, key=age, reverse=True)
