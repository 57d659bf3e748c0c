"""A problem as tools for code show it: a rule, a line of the project, words, and how it came to be.

SARIF and GitHub's annotations are made of these, whoever found them.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pytest_cudafork.observe.story.paths import location
from pytest_cudafork.observe.story.touch import Frame, Touch

ERROR, WARNING, NOTE = "error", "warning", "note"
"""How bad a problem is; SARIF has the same words."""

RULES = {
    "fork-while-initialized": (
        "A process forked, or tried to, after CUDA was initialized in it.",
        "Move the line that initializes CUDA out of imports, or start the process by spawn.",
    ),
    "poisoned-touch": (
        "A process that was forked from one with CUDA initialized used CUDA.",
        "Do not initialize CUDA before the fork, or start the process by spawn.",
    ),
    "touch": (
        "CUDA was initialized where the level 'touch' allows none.",
        "Initialize CUDA in an isolated test or in a child process.",
    ),
    "touch-at-import": (
        "Importing a module initializes CUDA, so every fork after it breaks.",
        "Ask about the GPU when a function is called, and not when the module is imported.",
    ),
    "import-broken": (
        "The import of a module crashed, or did not end.",
        "Import the module alone to see the failure: python -c 'import MODULE'.",
    ),
    "not-observable": (
        "It could not be seen whether CUDA was initialized.",
        "Read the reason; what was not seen is not known to be clean.",
    ),
    "graph-capture": (
        "A CUDA graph does not compute what eager code does, or cannot be captured.",
        "Read the finding: it names what differs, and what to change.",
    ),
}
"""What each kind of problem is, and what to do about it."""

_SITE = re.compile(r"[/\\](?:site|dist)-packages[/\\]")


class Place(NamedTuple):
    """A line of a file; ``line`` is 1 where nothing closer is known."""

    file: str
    line: int


class Problem(NamedTuple):
    """One problem.

    Attributes:
        rule: A name in ``RULES``.
        level: ERROR, WARNING or NOTE.
        message: It, in one line.
        story: It, in full.
        place: The line of the project to look at; None: no line of it is known.
        steps: The lines through which it came to be, in order, each with words.
        accepted: Why it is no error today, such as the baseline that holds it; "": it is not.
        test: The test or collection that it belongs to, or "".

    """

    rule: str
    level: str
    message: str
    story: str = ""
    place: Place | None = None
    steps: tuple[tuple[Place, str], ...] = ()
    accepted: str = ""
    test: str = ""


def place_in(root: str, frames: Iterable[Frame]) -> Place | None:
    """Return the first of these lines that is in a file of the project; None: none is.

    Args:
        root: The project's folder.
        frames: The lines, the one to prefer first.

    """
    for frame in frames:
        if is_in(root, frame.filename):
            return Place(frame.filename, max(1, frame.lineno))
    return None


def place_at(where: str) -> Place | None:
    """Return the place of ``file:line``; None: it is none."""
    file, _, line = where.rpartition(":")
    return Place(file, int(line)) if file and line.isdigit() else None


def is_in(root: str, file: str) -> bool:
    """Whether a file is one of the project's own: below its folder, and not installed."""
    path = path_in(root, file)
    return path is not None and _SITE.search(os.sep + path) is None


def path_in(root: str, file: str) -> str | None:
    """Return the path of a file relative to a folder above it; None: that is not above it.

    The folder may be named by a link, and the file by where that leads, or the other way round.
    """
    for folder, name in ((root, file), (_real(root), _real(file))):
        own = folder.rstrip(os.sep) + os.sep
        if name.startswith(own):
            return name[len(own) :]
    return None


@functools.lru_cache(maxsize=4096)
def _real(path: str) -> str:
    try:
        return os.path.realpath(path) if os.path.isabs(path) else path
    except ValueError:  # code may call its file anything, also what cannot be the name of one
        return path


def place_of_touch(root: str, touch: Touch) -> Place | None:
    """Return the line of the project that is nearest to a touch."""
    culprit = [touch.culprit] if touch.culprit is not None else []
    return place_in(root, [*culprit, *touch.frames])


def steps_of_touch(touch: Touch) -> tuple[tuple[Place, str], ...]:
    """Return the lines on the way to a touch: the imports, then the line that touched."""
    chain: Sequence[Frame] = touch.import_chain or ([touch.culprit] if touch.culprit else [])
    found = []
    for number, frame in enumerate(chain, 1):
        last = number == len(chain)
        words = f"{touch.entry} initializes CUDA" if last else f"imports (see {location(frame)})"
        if not frame.filename.startswith("<"):
            found.append((Place(frame.filename, max(1, frame.lineno)), words))
    return tuple(found)
