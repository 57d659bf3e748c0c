"""Owns what to do where the native libraries were not built: in a checkout they are built in place.

It does not know what can be seen without them.
"""

from __future__ import annotations

from pathlib import Path

import pytest_cudafork
from pytest_cudafork.observe.driver import native_libs

_WORDS = " was not built."


def explained(reason: str) -> str:
    """Return the reason why nothing could be seen, with what helps in a checkout.

    To install the package from an index again, as the reason says, would leave the checkout as it
    is.

    Args:
        reason: What a process of the audit has said.

    """
    missing, words, _ = native_libs.why_not().partition(_WORDS)
    folder = _checkout() if words and f"{missing}{words}" in reason else None
    if folder is None:
        return reason
    start = reason.partition(missing)[0]
    return (
        f"{start}{missing}{words} This is a checkout: with a C compiler, run `python setup.py "
        f"build_native --inplace` in {folder}"
    )


def _checkout() -> Path | None:
    """Return the folder of the checkout in which this package lies; None if it was installed."""
    folder = Path(pytest_cudafork.__file__).resolve().parent.parent
    try:
        text = (folder / "setup.py").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return folder if "build_native" in text else None
