"""What is used of Triton that has no public name; Triton is never imported here."""

from __future__ import annotations

import sys
from typing import Any

TUNE = "_bench"
"""The method of an ``Autotuner`` that runs a candidate several times and waits for it."""


def autotuner() -> Any:
    """Return the class of Triton's autotuners; None where it is not imported."""
    return getattr(sys.modules.get("triton.runtime.autotuner"), "Autotuner", None)
