"""What benchmarks ask of their command lines and of the machine: a wrong usage measures nothing."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Iterable, Sized


def at_least(least: int) -> Callable[[str], int]:
    """Return a type for ``add_argument``: a whole number of at least so many."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
        if number < least:
            raise argparse.ArgumentTypeError(f"{text}: at least {least}")
        return number

    return read


def above_zero(text: str) -> float:
    """Read a number above 0, as of seconds."""
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: a number above 0")
    return number


def has_gpu() -> bool:
    """Whether this machine has an NVIDIA GPU; nothing touches it to know."""
    return os.path.exists("/dev/nvidiactl")


def needs_gpu(made: argparse.ArgumentParser) -> None:
    """End with a wrong usage where there is no GPU that could be measured."""
    if not has_gpu():
        made.error("there is no NVIDIA GPU here (no /dev/nvidiactl): nothing can be measured")


def some(
    made: argparse.ArgumentParser, option: str, word: str, chosen: Sized, names: Iterable[str]
) -> None:
    """End with a wrong usage where the word of an option has chosen nothing of these names."""
    if not chosen:
        made.error(f"{option}: {word!r} is in none of {', '.join(names)}")
