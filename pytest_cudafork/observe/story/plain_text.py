"""Text that somebody else wrote (names, paths, lines of source), made safe to be shown.

A ledger or a file may hold control sequences of a terminal, and parts of characters that no
encoding can write.
"""

from __future__ import annotations

_KEPT = frozenset("\t\u00a0\u3000")
"""Blanks that Python does not call printable, and that do no harm."""


def plain(text: str) -> str:
    """Return the text with everything that is not printable as an escape, in one line."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in _KEPT else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
