"""What the options say of a session's intent: what it promises, and what is an error."""

from __future__ import annotations

SPAWNED = "spawned"
GPU_SKIPPED = "gpu-skipped"
GPU_SEEN = "gpu-seen"
KINDS = (SPAWNED, GPU_SKIPPED, GPU_SEEN)
"""The kinds of tests that did not run as they were meant to."""
ALL = "all"


def parse_expected(text: str) -> int:
    """Read how many GPUs the session is promised.

    Raises:
        ValueError: it is no whole number of them.

    """
    if not (text.isascii() and text.isdigit() and len(text) < 6):
        raise ValueError(f"{text!r} is not a number of GPUs: use 0 for none, or 1, 2, ...")
    return int(text)


def parse_kinds(text: str) -> tuple[str, ...]:
    """Read which kinds are errors.

    Raises:
        ValueError: one of them is none.

    """
    kinds = tuple(part.strip() for part in text.split(",") if part.strip())
    for kind in kinds:
        if kind not in (*KINDS, ALL):
            raise ValueError(f"{kind!r} is not an intent: use {', '.join((*KINDS, ALL))}")
    return tuple(dict.fromkeys(kinds))


def check(kinds: tuple[str, ...], expected: int | None, *, checked: bool) -> None:
    """Check that an error that is asked for can be one.

    Args:
        kinds: Those that are errors.
        expected: The GPUs that are promised; None: nothing was said.
        checked: Whether the check is on.

    Raises:
        ValueError: it cannot.

    """
    if GPU_SKIPPED in kinds and not expected:
        raise ValueError(
            f"{GPU_SKIPPED}: no GPU is promised: say how many with --cuda-fork-expect-gpus=N"
        )
    if GPU_SEEN in kinds and expected != 0:
        raise ValueError(
            f"{GPU_SEEN}: the session is none without a GPU: say so with --cuda-fork-expect-gpus=0"
        )
    if GPU_SEEN in kinds and not checked:
        raise ValueError(f"{GPU_SEEN}: nobody watches for touches: add --cuda-fork-check")


def effective(kinds: tuple[str, ...], expected: int | None, *, checked: bool) -> frozenset[str]:
    """Return the kinds that are errors, where "all" means those that can be known."""
    if ALL not in kinds:
        return frozenset(kinds)
    found = {SPAWNED, *kinds} - {ALL}
    if expected:
        found.add(GPU_SKIPPED)
    if expected == 0 and checked:
        found.add(GPU_SEEN)
    return frozenset(found)
