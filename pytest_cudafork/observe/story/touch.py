"""The touch record: who touched CUDA, at which line, reached through which imports."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_cudafork.compat.unpatched import os, re
from pytest_cudafork.observe.story.packages import package_of
from pytest_cudafork.observe.story.plain_text import plain
from pytest_cudafork.observe.story.scopes import Scope, scope_of

CO_OPTIMIZED = 0x1
"""Set in the flags of a function's code object, and not in those of a module or class body."""

# Packages that stand between the code that asks about a GPU and the driver. A touch is never
# blamed on them unless nothing else is on the stack.
CUDA_LIBRARIES = frozenset(
    {
        *("cuda", "cupy", "cupy_backends", "pycuda", "pynvml"),
        *("jax", "jax_cuda13_plugin", "jax_plugins", "jaxlib"),
        *("numba", "numba_cuda", "torch", "triton"),
    }
)
# The machinery that runs other people's code: never the line a user can change.
MACHINERY = frozenset({"_pytest", "execnet", "pluggy", "py", "pytest", "pytest_cudafork", "xdist"})

_TYPED = re.compile(r"<(?:console|doctest |input|i?python-input-|stdin)")
"""How the names of code begin that somebody has typed, and not a program."""


@dataclass(frozen=True)
class Frame:
    """One frame of a recorded stack.

    ``flags`` are the code object's ``co_flags``, or -1 where the stack was taken without them.
    """

    filename: str
    lineno: int
    name: str
    flags: int = -1

    @functools.cached_property
    def scope(self) -> Scope:
        """What kind of code the frame ran: a module body, a class body or a function."""
        if self.name == "<module>":
            return Scope.MODULE
        if self.flags >= 0:
            return Scope.FUNCTION if self.flags & CO_OPTIMIZED else Scope.CLASS
        return scope_of(self.filename, self.lineno, self.name.rpartition(".")[2])

    @property
    def is_body(self) -> bool:
        """Whether the frame ran a module or class body."""
        return self.scope is not Scope.FUNCTION

    @property
    def is_generated(self) -> bool:
        """Whether no line could be changed: it was made at run time, or has no number.

        As the ``__init__`` of a dataclass, what ``exec`` and ``eval`` run, a graph of torch.fx.
        """
        made = self.filename.startswith("<") and _TYPED.match(self.filename) is None
        return made or self.lineno <= 0

    @property
    def package(self) -> str:
        """Return the top-level package of an installed library, "" for code that is not installed.

        Frozen importlib and the standard library answer "<stdlib>".
        """
        return package_of(self.filename)

    @property
    def is_import_machinery(self) -> bool:
        """Whether the frame belongs to an import in progress rather than to anybody's code."""
        if self.filename.startswith("<frozen importlib") or self.filename.startswith("<frozen zip"):
            return True
        tail = self.filename.replace("\\", "/")
        if tail.endswith("_pytest/assertion/rewrite.py"):
            return self.name.endswith("exec_module")
        if tail.endswith("pytest_cudafork/observe/base/after_import.py"):
            return True
        return tail.endswith("importlib/__init__.py")


@dataclass(frozen=True)
class Touch:
    """One recorded touch: a call that initializes the CUDA driver, or tries to.

    ``time_ns`` is ``CLOCK_MONOTONIC``; ``frames`` are innermost first; ``poisoned`` means that the
    process had been forked from an initialized one; ``again`` that it had touched before.
    """

    id: str
    pid: int
    time_ns: int
    owner: str
    witness: str
    entry: str
    library: str
    poisoned: bool
    again: bool
    test: str
    phase: str
    frames: tuple[Frame, ...]

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Touch:
        """Read a ledger record of kind ``touch``; keys that are missing read as unknown."""
        return cls(
            id=str(record.get("id", "")),
            pid=int(record.get("pid", 0)),
            time_ns=int(record.get("t", 0)),
            owner=str(record.get("owner", "")),
            witness=str(record.get("witness", "")),
            entry=plain(str(record.get("entry", ""))),
            library=plain(str(record.get("library", ""))),
            poisoned=bool(record.get("poisoned", False)),
            again=bool(record.get("again", False)),
            test=plain(str(record.get("test", ""))),
            phase=plain(str(record.get("phase", ""))),
            frames=frames_from(record.get("stack", ())),
        )

    @functools.cached_property
    def culprit(self) -> Frame | None:
        """The line to change; None when no Python stack could be had."""
        return culprit_of(self.frames)

    @property
    def at_import(self) -> bool:
        """Whether the culprit line runs when its module is imported."""
        return bool(self.frames) and first_import_body(self.frames) is not None

    @functools.cached_property
    def import_chain(self) -> tuple[Frame, ...]:
        """Lines through which the culprit was reached, outermost importer first, culprit last."""
        return import_chain_of(self.frames)

    @property
    def where(self) -> str:
        """The culprit as ``file:line``, the key under which touches are grouped."""
        culprit = self.culprit
        return f"{culprit.filename}:{culprit.lineno}" if culprit else "no Python stack"


def frames_from(stack: Sequence[Sequence[Any]]) -> tuple[Frame, ...]:
    """Read the ledger's ``[filename, line, name, flags]`` lists, innermost first.

    Malformed ones are left out, and so are the frames of this package.
    """
    frames = []
    for item in stack:
        if len(item) >= 3:
            flags = int(item[3]) if len(item) > 3 and item[3] is not None else -1
            frames.append(Frame(str(item[0]), int(item[1] or 0), plain(str(item[2])), flags))
    return _without_ours(frames)


def _import_bodies(frames: Sequence[Frame]) -> Iterator[int]:
    """Indexes of the frames that run because a module is being imported, innermost first.

    A body is run by an import if, going outwards over the bodies it is nested in, the next frame
    is the import machinery. That leaves out the script itself (``__main__``), code that a tool
    runs by ``exec``, and code that has no line in a file.
    """
    for index, frame in enumerate(frames):
        if not frame.is_body or frame.is_generated:
            continue
        outer = index + 1
        while outer < len(frames) and frames[outer].is_body:
            outer += 1
        if outer < len(frames) and frames[outer].is_import_machinery:
            yield index


def first_import_body(frames: Sequence[Frame]) -> int | None:
    """Index of the innermost frame that runs at import time; None if there is none."""
    return next(_import_bodies(_within_pytest(frames)), None)


_PYTEST_BEGINS = re.compile(r"[/\\]_pytest[/\\](?:config[/\\]__init__|main)\.py$")


def _within_pytest(frames: Sequence[Frame]) -> Sequence[Frame]:
    """Return the frames up to the outermost of pytest's session; all, if there is none.

    What is further out has called pytest, the command ``pytest`` or a program, and has done nothing
    of what the session does.
    """
    ends = (n for n in range(len(frames), 0, -1) if _PYTEST_BEGINS.search(frames[n - 1].filename))
    return frames[: next(ends, len(frames))]


def culprit_of(frames: Sequence[Frame]) -> Frame | None:
    """Return the line to change for a stack (innermost frame first).

    The innermost module or class body that is being imported; else the innermost frame outside the
    CUDA libraries, the standard library and the test machinery, of a file if there is one; else the
    innermost frame of pytest, which names the hook or what else it calls; else the innermost frame.
    """
    body = first_import_body(frames)
    if body is not None:
        return frames[body]
    frames = _within_pytest(frames)
    libraries = CUDA_LIBRARIES | {"<stdlib>"}
    for skip in (libraries | MACHINERY, libraries | {"pluggy"}, libraries):
        found = [
            frame
            for index, frame in enumerate(frames)
            if frame.package not in skip and not _is_own(frame) and not _is_command(frames, index)
        ]
        if found:
            return next((frame for frame in found if not frame.is_generated), found[0])
    return frames[0] if frames else None


def _is_command(frames: Sequence[Frame], index: int) -> bool:
    """Whether a frame is no more than multiprocessing's command: ``python -c 'from ...'``."""
    inner = frames[index - 1].filename if index else ""
    return frames[index].filename == "<string>" and _COMMANDS.search(inner) is not None


_COMMANDS = re.compile(r"[/\\]multiprocessing[/\\](forkserver|resource_tracker|spawn)\.py$")
_HERE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep


def _is_own(frame: Frame) -> bool:
    """Whether a frame is the plugin's own, in a checkout too."""
    return frame.package == "pytest_cudafork" or frame.filename.startswith(_HERE)


def _without_ours(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """Leave out what a hook of ours put between the caller and the driver.

    That is our own frames, and the frame with which a hook stands in for its caller (see
    ``hooking``): the caller's place once more, under another name or right within our frames.
    """
    visible: list[Frame] = []
    passed = False
    for frame in frames:
        if _is_own(frame) and not frame.is_import_machinery:
            passed = True
            continue
        same = visible and (visible[-1].filename, visible[-1].lineno)
        if same == (frame.filename, frame.lineno) and (passed or visible[-1].name == "_call"):
            visible.pop()
        visible.append(frame)
        passed = False
    return tuple(visible)


def import_chain_of(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """Return who imported whom on the way to the culprit, outermost first; () for a plain call."""
    return tuple(frame for frame, _ in _chain_of(frames, runs=False))


def way_of(frames: Sequence[Frame]) -> tuple[tuple[Frame, bool], ...]:
    """Return the chain of imports with the lines that run a file's code without an import.

    By ``exec`` or ``runpy``, that is; the second value is whether the frame is such a line.
    """
    return _chain_of(frames, runs=True)


def _chain_of(frames: Sequence[Frame], *, runs: bool) -> tuple[tuple[Frame, bool], ...]:
    body = first_import_body(frames)
    if body is None:
        return ()
    chain = [(frames[body], False)]
    imported = False
    executed = runs and frames[body].name == "<module>"
    for frame in _within_pytest(frames)[body + 1 :]:
        if frame.is_import_machinery:
            imported, executed = True, False
            continue
        if not _is_plumbing(frame) and (imported or not frame.is_generated):
            if imported or executed:
                chain.append((frame, executed))
            executed = runs and frame.name == "<module>"
        imported = False
    return tuple(reversed(chain))


def _is_plumbing(frame: Frame) -> bool:
    return frame.package in MACHINERY or frame.package == "<stdlib>" or _is_own(frame)
