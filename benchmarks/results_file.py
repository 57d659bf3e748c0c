"""Shows and keeps a benchmark's outcome: a table, a last line of JSON, a results file."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from arguments import at_least

RESULTS = Path(__file__).resolve().parent / "results"
_PACKAGES = ("pytest-cudafork", "pytest", "pytest-xdist", "pluggy", "torch")


def parser(description: str, rounds: int) -> argparse.ArgumentParser:
    """Return a parser with the options that all benchmarks take."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--rounds", type=at_least(1), default=rounds, help=f"default {rounds}")
    made.add_argument("--save", action="store_true", help=f"also write a file in {RESULTS.name}/")
    return made


def versions() -> dict[str, str]:
    """Return the versions of what was measured; "none" for what is not installed."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "none"
    return found


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table, the first column to the left, numbers to the right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return f"| {' | '.join(padded)} |"

    rule = [("-" * width if i == 0 else "-" * (width - 1) + ":") for i, width in enumerate(widths)]
    return "\n".join([line(header), line(rule), *(line(row) for row in rows)])


def publish(topic: str, title: str, text: str, data: dict[str, Any], *, save: bool) -> None:
    """Print the table and the JSON line; with ``save`` keep both, with versions and command."""
    device = "gpu" if os.path.exists("/dev/nvidiactl") else "cpu"
    today = datetime.date.today().isoformat()
    data = {"topic": topic, "device": device, "date": today, "versions": versions(), **data}
    last = json.dumps(data)
    print(text)
    if save:
        command = f"python benchmarks/{Path(sys.argv[0]).name} {' '.join(sys.argv[1:])}".strip()
        told = ", ".join(f"{name} {number}" for name, number in versions().items())
        page = f"# {title}\n\n{today}, {device}, {os.cpu_count()} cores. {told}.\n\n"
        page += f"```\n{command}\n```\n\n{text}\n\n```json\n{last}\n```\n"
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{topic}_{device}_{today}.md").write_text(page, encoding="utf-8")
    print(last)
