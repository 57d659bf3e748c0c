"""The patches that a process inherits: by its environment, by a fork, or from ``multiprocessing``.

A process that was started by exec learns of them before any code of the user's, by way of
``_startup/sitecustomize.py``. Fork servers apply none, for they outlive the test: their children
do, when they are told what to do.
"""

from __future__ import annotations

import sys
from typing import Any

from pytest_cudafork.compat import standard_library
from pytest_cudafork.compat.unpatched import contextlib, os
from pytest_cudafork.observe.base.after_import import after_import
from pytest_cudafork.observe.handed_on import ROOT, STARTUP
from pytest_cudafork.patch.applying import records
from pytest_cudafork.patch.applying.apply import apply
from pytest_cudafork.settings import environment

_EXIT = 1

# What has been applied to a process is a fact of the process: so many patches of each folder.
applied: dict[str, int] = {}


def begin() -> None:
    """Apply what this fresh interpreter inherits; one that cannot is ended, for it would run wrong.

    Python itself would go on without the patches after an error in ``sitecustomize``.
    """
    try:
        apply_inherited()
    except Exception as error:
        with contextlib.suppress(AttributeError, OSError, ValueError):
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            sys.stderr.flush()
        os._exit(_EXIT)


def apply_inherited() -> None:
    """Apply the patches that the environment tells of, those that are not in force here yet.

    Variables are not among them: the environment has these, and whoever made it may have wished
    for others.

    Raises:
        AttributeError, KeyError: What is to be replaced is not there.

    """
    folder = environment.value(environment.PATCHES)
    if folder:
        _apply_all(folder, variables=False)


def apply_folder(folder: str) -> None:
    """Apply the patches of a folder, variables included, in a child that ``multiprocessing`` made.

    Its fork server may be older than the test, with an environment of its own.

    Raises:
        AttributeError, KeyError: What is to be replaced is not there.

    """
    tell_children(contextlib.ExitStack(), folder)
    _apply_all(folder, variables=True)


def _apply_all(folder: str, *, variables: bool) -> None:
    try:
        patches = records.read(folder)
    except FileNotFoundError:
        if folder not in applied:
            sys.stderr.write(
                f"pytest-cudafork: process {os.getpid()} was started when the test whose "
                "child_patch it would inherit was over: it is not patched\n"
            )
        return
    if folder not in applied:
        applied[folder] = 0
        tell_multiprocessing(folder)
    for record in patches[applied[folder] :]:
        applied[folder] += 1
        if variables or record.kind not in records.ENVIRONMENT:
            apply(record, failed=lambda text: records.complain(folder, text))


def tell_children(undo: contextlib.ExitStack, folder: str) -> None:
    """Let the processes that this one starts by exec find the patches, until ``undo`` is closed."""
    environment.set_variable(undo, environment.PATCHES, folder)
    environment.set_variable(undo, environment.ROOT, ROOT)
    environment.prepend_path(undo, environment.PYTHON_PATH, STARTUP)


def tell_multiprocessing(folder: str) -> contextlib.ExitStack:
    """Let the children of ``multiprocessing`` that are not forked from here find the patches.

    They come with what each child is told first, for a fork server keeps the environment in which
    it was started. Returns what undoes it.
    """
    undo = contextlib.ExitStack()

    def hook(module: Any) -> None:
        undo.callback(standard_library.send_with_preparation(module, _NAME, Bearer(folder)))

    undo.callback(after_import("multiprocessing.spawn", hook))
    return undo


_NAME = "cudafork_patches"


class Bearer:
    """What applies the patches of a folder where it is unpickled."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        """Become a call."""
        return apply_folder, (self._folder,)
