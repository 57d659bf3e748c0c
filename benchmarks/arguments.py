"""Types of numbers on the command lines of benchmarks: one that makes no sense is a wrong usage."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable


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
