"""The levels of the check: what ``--cuda-fork-check`` treats as an error.

On their own, as the check is used in programs that know no pytest.
"""

from __future__ import annotations

import enum


class Level(enum.Enum):
    """What is an error; each level has the errors of the one before."""

    OFF = "off"
    POISON = "poison"
    FORK = "fork"
    TOUCH = "touch"
