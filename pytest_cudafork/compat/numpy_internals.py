"""What the plugin uses of numpy that has no public name; numpy is never imported here."""

from __future__ import annotations

import sys
from typing import Any


def is_global_generator_unseeded() -> bool:
    """Whether ``numpy.random``'s global generator still has the seed it took from the system.

    ``numpy.random.mtrand._rand`` and its ``_bit_generator``: a seed of the user's replaces the seed
    sequence that numpy began with, and nothing public tells. False where numpy is not imported.
    """
    module: Any = sys.modules.get("numpy.random.mtrand")
    state: Any = getattr(module, "_rand", None)
    generator = getattr(state, "_bit_generator", None)
    return getattr(generator, "seed_seq", None) is not None
