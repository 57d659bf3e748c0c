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
_NOT_A_GPU = re.compile(
    r"\bnon[\s-]?(?:cuda|gpu|nvidia)\b|\bcuda[\s-]?graph\w*"
    r"|\b(?:import|module named) (?P<q>['\"]).*?(?P=q)"
    r"|\bcuda(?:\s+(?:toolkit|runtime|driver|version|is|lower|older|newer|higher|at least|than))*"
    r"\W{0,4}v?(?:\d+(?:\.\d+)+|9|[1-9]\d)(?!\.?\w)(?!\+?\s*(?:\w+ )?(?:gpus?|devices?)\b)",
    re.I,
)
"""What has the name of CUDA in it and is no GPU: graphs, versions, modules."""
_OTHER_MAKER = re.compile(
    r"\b(?:rocm|hip|amd|intel|xpus?|apple|mps|metal|tpus?|npus?|hpus?|ascend|gaudi|habana)\b", re.I
)
_NVIDIA = re.compile(r"\b(?:cuda|nvidia|cudnn)\b", re.I)
_KIND = re.compile(
    r"\bcpu[- ]only\b|\bonly (?:\w+ ){0,3}cpu\b|\bcapabilit|\bsm_?\d|\barch|\bhopper|\bblackwell"
    r"|\bampere|\bfp8\b|\bmemory\b|\bvram\b|\d ?gi?b\b",
    re.I,
)
_DOES_NOT_WORK = re.compile(
    r"\bunsupported\b|\b(?:not|doesn't|isn't|fails?|broken|flaky|slow)\b[^.]{0,40}"
    r"\b(?:support|implement|work|run|on|with)\w*\b[^.]{0,30}\b(?:gpus?|cuda|rocm)\b"
    r"|\bskip\w*\b[^.]{0,20}\bon (?:gpus?|cuda)\b(?!\s*-?less)",
    re.I,
)
_NOT_THERE = re.compile(
    r"\b(?:no|not|without|un)\b[^.]{0,30}\b(?:available|found|detected|visible|there|installed)\b"
    r"|\bno (?:\w+ )?(?:gpus?|cuda|devices?)\b",
    re.I,
)
_WITHOUT = re.compile(
    r"\bnot (?:compiled|built) (?:with|for) cuda\b"
    r"|\b(?:needs?|requires?|without)\s+(?:an?\s+|at least\s+|\d+\+?\s+)*(?:nvidia\s+|cuda\s+)?"
    r"(?:gpus?|cuda)\b(?![\s-]*(?:graph|\d))",
    re.I,
)
"""Words for a GPU that is not there, in which "not" and "without" speak of nothing else."""
_NUMBERS = {"one": 1, "two": 2, "three": 3, "four": 4, "six": 6, "eight": 8, "sixteen": 16}
_NUMBER = re.compile(
    rf"\b(more than )?(\d{{1,3}}(?!\d)|{'|'.join(_NUMBERS)})\+?\s*(?:or more\s+|x\s*)?(?:\w+\s+)?"
    r"(?:gpus?|(?:cuda )?devices?)\b",
    re.I,
)
_LESS = re.compile(
    r"(?:gpus?|devices?|device_count\(\))[^<,;.]{0,20}<[^\d,;.]{0,12}(\d{1,3})(?![\d.])", re.I
)
_SEVERAL = re.compile(
    r"\bdevices\b|\bmultiple\b|\bmulti-?gpu\b|\b(?:not enough|insufficient)\b[^.]{0,20}\bgpus\b",
    re.I,
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
    unless it speaks of a kind of GPU (its capability, its memory, another maker's), or of something
    that does not work on one.
    """
    reason = _NOT_A_GPU.sub(" ", reason)
    if not _GPU.search(reason) or _is_otherwise(reason):
        return 0
    numbers = [
        (_NUMBERS.get(number.lower()) or int(number)) + bool(more)
        for more, number in _NUMBER.findall(reason)
    ]
    numbers += [int(number) for number in _LESS.findall(reason)]
    if not numbers and _SEVERAL.search(reason):
        return 2
    return max([1, *numbers])


def _is_otherwise(reason: str) -> bool:
    """Whether a reason that names a GPU speaks of its kind, or of what does not work on it."""
    if _OTHER_MAKER.search(reason) and not _NVIDIA.search(reason):
        return True
    if _NOT_THERE.search(reason):
        return False
    if _KIND.search(reason):
        return True
    return _DOES_NOT_WORK.search(reason) is not None and _WITHOUT.search(reason) is None


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
