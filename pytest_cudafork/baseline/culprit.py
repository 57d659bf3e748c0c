"""What a line of code is known by, wherever it moves: its file, its scope, the statement's text.

A line number would be wrong after the first commit above it, and an entry that has lost its line
accepts another one. So a culprit is a statement: the same text in the same function of the same
file is the same culprit. It is another one when its text changes, which is what a repair does; two
statements of one scope that read alike are one.
"""

from __future__ import annotations

import hashlib
import os
import re
from typing import NamedTuple

from pytest_cudafork.observe.story.plain_text import plain
from pytest_cudafork.observe.story.scopes import statement_text
from pytest_cudafork.observe.story.touch import Frame

_LONGEST = 160
"""Characters of a statement that are kept as they are."""
_INSTALLED = re.compile(r".*[/\\](?:site|dist)-packages[/\\]")
_STANDARD = re.compile(r".*[/\\]lib(?:64)?[/\\]python3\.\d+t?[/\\](?!site-packages|dist-packages)")
_TEMPORARY = re.compile(r".*[/\\]pytest-of-[^/\\]+[/\\]pytest-\d+[/\\](?:popen-gw\d+[/\\])?")


class Culprit(NamedTuple):
    """A statement: ``file`` as ``portable_path`` gives it, ``scope`` a qualified name."""

    file: str
    scope: str
    statement: str


def identify(frame: Frame, root: str) -> Culprit:
    """Return what a recorded frame is known by; ``root`` is pytest's root folder."""
    inline = frame.name.rpartition(".")[2].startswith("<") and frame.name != "<module>"
    kind = None if inline else frame.scope  # a lambda or comprehension has no statement of its own
    scope, text = statement_text(frame.filename, frame.lineno, kind, frame.name)
    return Culprit(portable_path(frame.filename, root), scope, shortened(text))


def shortened(text: str) -> str:
    """Cut a long statement; what is cut off still counts, by its digest."""
    if len(text) <= _LONGEST:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]
    return f"{text[:_LONGEST]}... {digest}"


def portable_path(filename: str, root: str) -> str:
    """Return a path that is the same in every checkout, environment and Python.

    Relative to ``root``; of an installed package ``site-packages/...``, of the standard library
    ``python/...``, of a file in pytest's ``tmp_path`` ``tmp/...``.
    """
    if filename.startswith("<"):
        return plain(filename)
    for pattern, prefix in ((_INSTALLED, "site-packages/"), (_STANDARD, "python/")):
        rest = pattern.sub("", filename)
        if rest != filename:
            return plain(prefix + rest.replace(os.sep, "/"))
    for base in (root, os.path.realpath(root)):
        folder = base.rstrip(os.sep) + os.sep
        if filename.startswith(folder):
            return plain(filename[len(folder) :].replace(os.sep, "/"))
    temporary = _TEMPORARY.sub("", filename)
    return plain(f"tmp/{temporary}" if temporary != filename else filename)


def is_gone(culprit: Culprit, root: str) -> bool:
    """Whether the statement is surely not there any more: its file below ``root`` has no such text.

    Of files elsewhere nothing is said: they may belong to another environment.
    """
    outside = ("<", "/", "site-packages/", "python/", "tmp/")
    if culprit.file.startswith(outside) or not culprit.statement:
        return False
    path = os.path.join(root, culprit.file)
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = plain(" ".join(file.read().split()))
    except FileNotFoundError:
        return os.path.isdir(root)
    except OSError:
        return False
    return culprit.statement.partition("... ")[0][:_LONGEST] not in text
