"""The options about memory of GPUs."""

from __future__ import annotations

import math

from pytest_cudafork.settings.option import Option, Table

SETTLE = Option(
    "cuda_fork_settle",
    "GIB",
    "Before a test, wait until the memory of the GPUs that it may use is back: no more than GIB "
    "(the flag alone: 1) above what was in use when the session began. What tests left behind is "
    "ended; if the memory is not back then, the test fails and names who holds it.",
    flag_value="1",
)


def parse_gib(text: str) -> int:
    """Read a number of GiB; returns bytes.

    Raises:
        ValueError: it is none.

    """
    try:
        gib = float(text)
    except ValueError:
        gib = math.nan
    if not 0 <= gib < math.inf:
        raise ValueError(f"{text!r} is not a number of GiB, as in 1 or 0.5")
    return int(gib * (1 << 30))


GPU_PARSERS: Table = {
    "settle": (SETTLE, parse_gib),
}
"""The options by the field of ``Settings`` that holds their value."""

GPU_OPTIONS = tuple(option for option, _ in GPU_PARSERS.values())
