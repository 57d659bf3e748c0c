"""What the user asked for: options, markers and the environment, read into frozen values.

Words that an option and a marker both take stand here, each list once.
"""

from __future__ import annotations

import enum

AUTO = "auto"
"""The choice is the plugin's: for isolation the cheapest method that is safe for the test."""
NONE = "none"

METHODS = ("fork", "forkserver", "spawn")
"""How a test, or a function, gets a process of its own."""
HEALTH = ("fail", "recover", "off")
"""What becomes of the tests after one that has left the GPU sick."""
GRAPH_BACKENDS = ("software", "cuda")
"""How graphs are captured."""
CAPTURES = ("check", "all", "audit", "off")
"""How captures that tests make are looked at."""


class Level(enum.Enum):
    """What ``--cuda-fork-check`` treats as an error; each has the errors of the one before.

    It stands here because the check is used in programs that know no pytest, as options do.
    """

    OFF = "off"
    POISON = "poison"
    FORK = "fork"
    TOUCH = "touch"
