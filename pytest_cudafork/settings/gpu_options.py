"""The options about memory of GPUs: waiting for it, recording it, packing tests by it."""

from __future__ import annotations

import math

from pytest_cudafork.settings.option import Option, Table, parse_file

SETTLE = Option(
    "cuda_fork_settle",
    "GIB",
    "Before a test, wait until the memory of the GPUs that it may use is back: no more than GIB "
    "(the flag alone: 1) above what was in use when the session began. What tests left behind is "
    "ended; if the memory is not back then, the test fails and names who holds it.",
    flag_value="1",
)
PROFILE = Option(
    "cuda_fork_profile",
    "FILE",
    "Record how long each test takes, how much RAM, and how much memory of how many GPUs; keeps "
    "what FILE says of other tests. The summary shows the longest and the largest.",
)
PACK = Option(
    "cuda_fork_pack",
    "FILE",
    "Give tests that do not say how much memory of a GPU they need what FILE, recorded by "
    "--cuda-fork-profile, says of them, so that they share GPUs; and start the longest first.",
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


def parse_profile(text: str) -> str:
    """Read the name of a profile, as an absolute path.

    Raises:
        ValueError: it is empty.

    """
    if not text:
        raise ValueError("it needs the name of a file")
    return parse_file(text)


GPU_PARSERS: Table = {
    "settle": (SETTLE, parse_gib),
    "profile": (PROFILE, parse_profile),
    "pack": (PACK, parse_profile),
}
"""The options by the field of ``Settings`` that holds their value."""

GPU_OPTIONS = tuple(option for option, _ in GPU_PARSERS.values())
