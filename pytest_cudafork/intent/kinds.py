"""The kinds of tests that did not run as they were meant to, and how each is known."""

from __future__ import annotations

import re
from typing import NamedTuple

from pytest_cudafork.settings.intent import GPU_SEEN, GPU_SKIPPED, SPAWNED

PHRASES = {
    SPAWNED: ("wanted fork and ran spawn", "wanted fork and ran spawn"),
    GPU_SKIPPED: (
        "needs a GPU and was skipped, though GPUs were expected",
        "need a GPU and were skipped, though GPUs were expected",
    ),
    GPU_SEEN: (
        "saw a GPU, though none was expected",
        "saw a GPU, though none was expected",
    ),
}
"""What one test of each kind did, and what several did."""

_GPU = re.compile(
    r"\b(?:c?gpus?|cuda|cudnn|nvidia|rocm|hip|accelerators?|torch\.cuda\S*)\b|\bdevices\b", re.I
)
_OTHERWISE = re.compile(
    r"\bcpu[- ]only\b|\bonly (?:\w+ ){0,3}cpu\b|\bcapabilit|\bsm_?\d|\barch|\bhopper|\bblackwell"
    r"|\bampere|\bfp8\b|\bmemory\b|\bvram\b|\d ?gi?b\b"
    r"|\bunsupported\b|\b(?:not|doesn't|isn't|fails?|broken|flaky|slow)\b[^.]{0,40}"
    r"\b(?:support|implement|work|run|on|with)\w*\b[^.]{0,30}\b(?:gpus?|cuda|rocm)\b",
    re.I,
)
_NOT_THERE = re.compile(
    r"\b(?:no|not|without|un)\b[^.]{0,30}\b(?:available|found|detected|visible|there|installed)\b"
    r"|\bno (?:\w+ )?(?:gpus?|cuda|devices?)\b",
    re.I,
)
_NUMBER = re.compile(
    r"\b(\d+)\+?\s*(?:or more\s+|x\s*)?(?:\w+\s+)?(?:gpus?|(?:cuda )?devices?)\b", re.I
)


class Slip(NamedTuple):
    """One test that did not run as it was meant to: its kind, and why that is said."""

    kind: str
    nodeid: str
    why: str

    @property
    def words(self) -> str:
        """It in one line, without the test."""
        return f"{PHRASES[self.kind][0]}: {' '.join(self.why.split())}"


def gpus_wanted(reason: str) -> int:
    """Return how many GPUs a test wants by the reason of its skip; 0: it was skipped otherwise.

    A reason that speaks of a GPU, of CUDA or of several devices wants one, or as many as it says;
    unless it speaks of a kind of GPU (its capability, its memory), or of something that does not
    work on one.
    """
    if not _GPU.search(reason) or (_OTHERWISE.search(reason) and not _NOT_THERE.search(reason)):
        return 0
    numbers = [int(number) for number in _NUMBER.findall(reason)]
    if not numbers and re.search(r"\bdevices\b|\bmultiple\b|\bmulti-?gpu\b", reason, re.I):
        return 2
    return max([1, *numbers])


def skip_slip(nodeid: str, reason: str, marked: int, expected: int) -> Slip | None:
    """Return what is wrong with a skip; None if it is right.

    Args:
        nodeid: The test, or the file that was skipped as a whole.
        reason: What the skip says.
        marked: The GPUs that the test's own marker asks for; 0: it has none.
        expected: The GPUs that the session was promised.

    """
    wanted = marked or gpus_wanted(reason)
    if not 0 < wanted <= expected:
        return None
    return Slip(GPU_SKIPPED, nodeid, reason)
