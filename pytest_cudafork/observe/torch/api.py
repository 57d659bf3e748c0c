"""The witness in torch's Python API: calls that initialize CUDA where no driver sees them.

torch is never imported here; the hooks wait until somebody does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, Protocol, cast

from pytest_cudafork.compat.unpatched import os, threading
from pytest_cudafork.observe.base.after_import import after_import
from pytest_cudafork.observe.base.stacks import StackItem
from pytest_cudafork.observe.base.undo import UndoStack
from pytest_cudafork.settings import environment

if TYPE_CHECKING:
    from pytest_cudafork.observe.torch.c_calls import CFunctions
    from pytest_cudafork.observe.torch.rows import Row, Seen

# What works on torch is imported when torch is: most sessions that are watched never import it.
MODULES = (
    "torch.cuda",
    "torch.cuda.tunable",
    "torch.accelerator",
    "torch.autograd.graph",
    "torch.autograd.profiler",
    "torch.profiler",
    "torch.random",
    "torch._tensor",
    "torch.backends.cuda",
    "torch.backends.cudnn",
)
"""The modules after whose execution there are rows to hook."""


class Record(Protocol):
    """What the witness calls for each touch it sees."""

    def __call__(self, entry: str, *, again: bool, stack: list[StackItem]) -> None:
        """Write the touch down."""


class TouchCounter(Protocol):
    """The witness in or below the driver, as far as it counts the driver's initializations."""

    def touch_count(self) -> int:
        """Count the initializing calls seen in this process since its birth by fork or exec."""


class TorchWitness:
    """Records what torch does to CUDA, for this process and those forked from it.

    ``face`` is "real" (there is a driver and a GPU), "absent", or a present face such as
    "sm_90x2". ``native`` is the witness in or below the driver, if there is one: what it counted
    is not recorded twice. ``poisoned`` says whether this process was forked from an initialized
    one. An exception of ``record`` reaches the code that touched.
    """

    def __init__(
        self,
        face: str,
        record: Record,
        native: TouchCounter | None = None,
        poisoned: Callable[[], bool] = lambda: False,
    ) -> None:
        self.face = face
        self.poisoned = poisoned
        self._record = record
        self._native = native
        self._pid = 0
        self._seen: set[int] = set()
        self._writing: set[tuple[int, int]] = set()
        """The processes and threads that are about to record a touch."""
        self._count = 0
        self._happened: set[str] = set()
        self._hooked: dict[Row, object] = {}
        """What stands where a hook was put in."""
        self._undo = UndoStack()

    @property
    def touched(self) -> bool:
        """Whether this witness saw a touch in this very process."""
        return bool(self._seen) and self._pid == os.getpid()

    def is_writing(self) -> bool:
        """Whether another thread of this process has touched, and not recorded it yet."""
        if not self._writing:
            return False
        pid, own = os.getpid(), threading.get_ident()
        return any(each[0] == pid and each[1] != own for each in list(self._writing))

    def install(self) -> Callable[[], None]:
        """Be in force as soon as torch's modules have been executed; imports none of them.

        Returns the undo, which takes away whatever face is shown by then. Trouble with a torch
        that lacks what is expected becomes a warning.
        """
        undo = self._undo = UndoStack()
        self._hooked = {}
        for name in MODULES:
            undo.add(after_import(name, lambda module: self._arm(module, undo)))
        if self.face != "real" and hasattr(self._native, "after_call"):
            undo.add(after_import("torch", lambda module: self._watch_c(undo)))
        if self.face not in ("real", "absent"):
            # Not earlier: at the end of its own import torch looks for kernels that only a build
            # with CUDA has, and must find the build it is.
            undo.add(after_import("torch", lambda module: self._present(undo)))
        return self.uninstall

    def uninstall(self) -> None:
        """Take everything back that is in force; may be called again."""
        self._undo()

    def become(self, face: str) -> Callable[[], None]:
        """Show another face from now on; returns what brings the present one back.

        Raises:
            ValueError: *face* is not a face.

        """
        if face not in ("real", "absent"):
            from pytest_cudafork.observe.torch.present import parse_face

            parse_face(face)
        previous = self.face

        def show(face: str) -> None:
            self.uninstall()
            self.face = face
            self.install()

        show(face)
        return lambda: show(previous)

    def touch(self, entry: str, caller: FrameType | None) -> None:
        """Record that *caller* initializes CUDA through *entry*; once for each stack and test."""
        pid = os.getpid()
        if pid != self._pid:
            self._pid, self._seen = pid, set()
        from pytest_cudafork.observe.base.hooking import calling_stack

        stack = calling_stack(caller)
        # The same lines in another test are another finding (parameters, fixtures).
        place = environment.value(environment.TEST), environment.value(environment.PHASE)
        key = hash((entry, place, *stack))
        self._count += 1
        if key in self._seen:
            return
        again = bool(self._seen) or self._native_count() > 0
        here = pid, threading.get_ident()
        self._writing.add(here)  # first: whoever sees the touch can wait for the record
        try:
            self._seen.add(key)
            self._record(entry, again=again, stack=stack)
        finally:
            self._writing.discard(here)

    def first(self, what: str) -> bool:
        """Whether *what* happens for the first time in this process and those it descends from."""
        if what in self._happened:
            return False
        self._happened.add(what)
        return True

    def unseen(self, entry: str, caller: FrameType | None) -> Seen:
        """Watch a call, to record it at its end unless something below recorded it."""
        from pytest_cudafork.observe.torch.rows import Seen

        return Seen(self._tally, lambda: self.touch(entry, caller))

    def _tally(self) -> tuple[int, int]:
        return self._count, self._native_count()

    def _native_count(self) -> int:
        return 0 if self._native is None else self._native.touch_count()

    def _arm(self, module: ModuleType, undo: UndoStack) -> None:
        """Put the hooks of one executed module in force."""
        from pytest_cudafork.compat import torch_internals

        for row in self._rows(torch_internals.is_cuda_build()):
            if row.after != module.__name__:
                continue
            if row.owner in sys.modules:
                self._hook(row, undo)
            else:  # a torch that executes it later, or lacks it
                undo.add(after_import(row.owner, partial(self._hook_later, row, undo)))

    def _watch_c(self, undo: UndoStack) -> None:
        """Watch the C functions that a build without CUDA refuses, or what one with CUDA makes."""
        from pytest_cudafork.compat import torch_internals
        from pytest_cudafork.observe.torch.c_calls import arm, arm_types

        native = cast("CFunctions", self._native)
        if not torch_internals.is_cuda_build():
            arm(self, native, undo)
        elif self.face != "absent":
            arm_types(native, undo)

    def _present(self, undo: UndoStack) -> None:
        """Put the present face in force."""
        from pytest_cudafork.observe.torch.present import arm

        arm(self, undo)

    def _rows(self, cuda_build: bool) -> Iterator[Row]:
        """Give the rows for this face and this build."""
        from pytest_cudafork.observe.torch.rows import ABSENT, ABSENT_CPU, CPU_BUILD, CUDA_BUILD

        if cuda_build:
            if self.face in ("real", "absent"):
                yield from CUDA_BUILD
        elif self.face != "real":
            yield from CPU_BUILD
            if self.face == "absent":
                yield from ABSENT_CPU
        if self.face == "absent":
            yield from ABSENT

    def _hook_later(self, row: Row, undo: UndoStack, module: ModuleType) -> None:
        self._hook(row, undo)

    def _hook(self, row: Row, undo: UndoStack) -> None:
        """Put the hook of one row in, if this torch has what it names, and if it is not there.

        A module that is executed again has new functions of its own, and may hold others' hooked.
        """
        from pytest_cudafork.observe.base.hooking import hook, standing

        # Modules and names come and go between torch releases: what is missing is never called.
        owner: Any = sys.modules.get(row.owner)
        *path, name = row.name.split(".")
        for part in path:
            owner = getattr(owner, part, None)
        if hasattr(owner, name) and self._hooked.get(row) is not standing(owner, name):
            hook(undo, owner, name, row.around(self))
            self._hooked[row] = standing(owner, name)
