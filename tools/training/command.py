"""What the commands of both trainings share: options, and what is written of a training."""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path
from typing import Any

import torch

from tools.training import loop

__all__ = ["budget_of", "machine", "parser", "write_facts"]


def parser(name: str, minutes: float) -> argparse.ArgumentParser:
    """Return a parser with the options that every training has; ``minutes`` is the default."""
    made = argparse.ArgumentParser(prog=f"python -m tools.training.{name}")
    made.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1")
    made.add_argument("--minutes", type=float, default=minutes, help="all, compiling included")
    made.add_argument("--steps", type=int, help="train this many steps, whatever time it takes")
    made.add_argument("--source", type=Path, help="a library folder instead of this Python's")
    made.add_argument("--max-bytes", type=int, help="of each split, for short trials")
    made.add_argument("--no-compile", action="store_true")
    return made


def budget_of(options: argparse.Namespace) -> loop.Budget:
    """Return how long to train, of the options."""
    return loop.Budget(seconds=60 * options.minutes, steps=options.steps)


def machine(device: torch.device) -> dict[str, str]:
    """Return what a training ran on."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {"device": name, "torch": str(torch.__version__), "python": platform.python_version()}


def write_facts(path: Path, facts: dict[str, Any], device: torch.device) -> None:
    """Write what was done, and on which machine, as JSON."""
    text = json.dumps({**facts, "machine": machine(device)}, indent=2)
    path.write_text(f"{text}\n", encoding="utf-8")
