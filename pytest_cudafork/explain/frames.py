"""What the frames of a pasted traceback show: the line to look at, and how the process began.

A pasted traceback has neither the flags of its code nor the frames of the import system, and its
files may be of another machine: what is at import is read off names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_cudafork.observe.story.paths import location
from pytest_cudafork.observe.story.touch import CUDA_LIBRARIES, MACHINERY, Frame

_SKIPPED = CUDA_LIBRARIES | MACHINERY | {"<stdlib>"}
_STARTS = (
    ("multiprocessing/popen_fork.py", "the process was forked by multiprocessing"),
    ("multiprocessing/forkserver.py", "the process was forked by multiprocessing's fork server"),
    ("multiprocessing/spawn.py", "the process was started by spawn: it inherits nothing"),
    ("torch/utils/data/_utils/worker.py", "the process is a worker of a DataLoader"),
    ("concurrent/futures/process.py", "the process is a worker of a ProcessPoolExecutor"),
    ("celery/concurrency/prefork.py", "the process is a worker of Celery's prefork pool"),
    ("gunicorn/arbiter.py", "the process is a worker of Gunicorn, which forks"),
)
_LIBRARY_FILES = (
    *("/torch/cuda/__init__.py", "/torch/cuda/graphs.py", "/torch/_tensor.py"),
    *("/torch/nn/modules/module.py", "/triton/runtime/driver.py", "/triton/runtime/jit.py"),
)
"""Files that tell a source tree of a library from a folder that only bears its name."""
_RUNS_MAIN = frozenset({"_run_module_as_main", "_run_code"})
"""The functions of runpy that execute the main module of ``python -m``."""


def at_import(frames: Sequence[Frame]) -> Frame | None:
    """Return the innermost frame that ran because a module was imported; None if there is none.

    The outermost module body is the program itself, and so is a class body in it. Code that was
    made at run time has a body of its own and is no module.
    """
    for index, frame in enumerate(frames):
        if not frame.is_generated and (frame.name == "<module>" or _is_class(frame)):
            outer = frames[index:] if frame.name == "<module>" else frames[index + 1 :]
            return None if _is_program(outer) else frame
    return None


def _is_program(frames: Sequence[Frame]) -> bool:
    """Whether these are the body of the main module and what executes that for ``python -m``."""
    body, *outer = frames or (None,)
    return body is not None and body.name == "<module>" and all(map(_runs_main, outer))


def _runs_main(frame: Frame) -> bool:
    of_runpy = frame.filename == "<frozen runpy>" or _ends(frame.filename, "/runpy.py")
    return of_runpy and frame.name in _RUNS_MAIN


def _is_class(frame: Frame) -> bool:
    """Whether the name is written as classes are: a class body bears the name of its class."""
    name = frame.name.rpartition(".")[2]
    return name[:1].isupper() and not name.isupper()


def package_of(frame: Frame) -> str:
    """Return the package of a frame, of a path that was shortened as well: its first folder."""
    if frame.package:
        return frame.package
    filename = frame.filename.replace("\\", "/")
    first = filename.partition("/")[0]
    return first if first in _SKIPPED else ""


def line_to_look_at(frames: Sequence[Frame]) -> Frame | None:
    """Return the line to look at: one that runs at import, else the nearest outside libraries.

    Of code that was made at run time it is the line that called that, if there is one.
    """
    body = at_import(frames)
    if body is not None:
        return body
    trees = tuple(_source_trees(frames))
    found = [
        frame
        for frame in frames
        if package_of(frame) not in _SKIPPED and not _slashes(frame).startswith(trees)
    ]
    return next((frame for frame in found if not frame.is_generated), found[0] if found else None)


def _source_trees(frames: Sequence[Frame]) -> Iterator[str]:
    """Return the folders of libraries that were built from source and run from there."""
    for frame in frames:
        filename = _slashes(frame)
        for tail in _LIBRARY_FILES:
            if filename.endswith(tail):
                yield f"{filename.removesuffix(tail)}/{tail.split('/')[1]}/"


def _slashes(frame: Frame) -> str:
    return frame.filename.replace("\\", "/")


def shown(frames: Sequence[Frame]) -> list[str]:
    """Say what the frames show, in lines."""
    lines = []
    frame = line_to_look_at(frames)
    if frame is not None:
        runs = ""
        if frame is at_import(frames):
            what = "a class body" if _is_class(frame) else "a module body"
            runs = f": {what}, which runs when its module is imported"
        lines.append(f"the line to look at: {location(frame)} in {frame.name}{runs}")
    if frames and frames[0] is not frame:
        lines.append(f"the error was raised at {location(frames[0])} in {frames[0].name}")
    for each in frames:
        words = next((words for file, words in _STARTS if _ends(each.filename, file)), "")
        if words:
            lines.append(f"{words} ({location(each)})")
            break
    return lines


def _ends(filename: str, tail: str) -> bool:
    return filename.replace("\\", "/").endswith(tail)


def imported_package(frames: Sequence[Frame]) -> str:
    """Return the package to audit where the line runs at import; "" where it does not."""
    frame = at_import(frames)
    if frame is None:
        return ""
    package = frame.package
    if package == "<stdlib>":
        return ""
    if package:
        return package
    first, slash, _ = frame.filename.replace("\\", "/").lstrip("./").partition("/")
    return first if slash and first.isidentifier() else ""
