"""What is done before forks, so that they are cheap and safe: objects frozen, memory folded.

For Linux, and processes that have imported much.
"""

from __future__ import annotations

import mmap
import sys
from errno import EINVAL
from typing import Any

from pytest_cudafork.compat.unpatched import contextlib, ctypes, gc, io, os

_HUGE = 2 << 20
_MADV_HUGEPAGE = 14
_MADV_COLLAPSE = 25
_REFUSED = -1
_PAGEMAP_BYTES = 8
_PAUSE_SOFT = 1
_OPENMP = ("libgomp", "libiomp", "libomp")


def freeze() -> None:
    """Put all objects there are out of reach of the garbage collector, and turn it on.

    A collection in a child would write to every object, and so copy every page. None is done here
    either: it takes a tenth of a second, and the holes that it makes would be filled by children.
    """
    gc.freeze()
    gc.enable()


def freeze_in_child() -> None:
    """Put what a process has of its parent out of reach of the garbage collector, after the fork.

    A collection would write to every object, and so copy every page. Done in the child, because in
    the parent it could not be undone: what is unfrozen counts as old, young garbage among it, and
    old objects are hardly ever looked at while few are added in the usual way.
    """
    gc.freeze()


def collect_unfrozen() -> None:
    """Collect the garbage that a process has made since the objects of its parent were frozen.

    A collection of all generations empties Python's lists of free objects, too, which a child has
    of its parent: it would copy a few hundred pages. The oldest generation is left out where
    nothing is in it. (Python 3.14 has other generations.)
    """
    young = sys.version_info < (3, 14) and not gc.get_objects(generation=2)
    gc.collect(1 if young else 2)


class Collapse:
    """Folds the process's own memory into huge pages, so that a fork copies few page table entries.

    Linux 6.1 or later; elsewhere the kernel refuses, and nothing is lost. Done in steps, because
    all of it takes a third of a second where torch is imported.
    """

    def __init__(self) -> None:
        self._madvise = _madvise()
        self._waiting = _huge_ranges() if self._madvise is not None else []

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""
        return not self._waiting

    def step(self) -> None:
        """Fold one range of 2 MiB, about 5 ms, if most of it is in use."""
        start = self._waiting.pop()
        if _mostly_present(start) and self._madvise is not None:
            self._madvise(start, _HUGE, _MADV_HUGEPAGE)
            if self._madvise(start, _HUGE, _MADV_COLLAPSE) == _REFUSED and _errno() == EINVAL:
                self._waiting.clear()  # a kernel that does not know how


def _madvise() -> Any:
    function = getattr(ctypes.CDLL(None, use_errno=True), "madvise", None)
    if function is not None:
        function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function


def _errno() -> int:
    return ctypes.get_errno()


def _huge_ranges() -> list[int]:
    """Return the starts of the aligned 2 MiB ranges of writable memory without a file behind it."""
    found: list[int] = []
    with contextlib.suppress(OSError), io.open("/proc/self/maps", encoding="utf-8") as file:
        for line in file:
            parts = line.split(maxsplit=5)
            private = parts[1].startswith("rw") and parts[1].endswith("p")
            if private and (len(parts) < 6 or parts[5].strip() == "[heap]"):
                start, end = (int(text, 16) for text in parts[0].split("-"))
                found += range(-(-start // _HUGE) * _HUGE, end - _HUGE + 1, _HUGE)
    return found


def _mostly_present(start: int) -> bool:
    """Whether at least half of a range is in memory: the stack of an idle thread is not."""
    pages = _HUGE // mmap.PAGESIZE
    try:
        with io.open("/proc/self/pagemap", "rb", buffering=0) as file:
            file.seek(start // mmap.PAGESIZE * _PAGEMAP_BYTES)
            entries = file.read(pages * _PAGEMAP_BYTES)
    except OSError:
        return False
    # the highest bit of each little-endian entry says "present"
    present = sum(byte >> 7 for byte in entries[_PAGEMAP_BYTES - 1 :: _PAGEMAP_BYTES])
    return present * 2 >= pages


class OpenMP:
    """The OpenMP runtimes of this process.

    A pool of threads that exists at a fork makes the child's first parallel operation wait for ever
    for threads that it does not have.
    """

    def __init__(self) -> None:
        self._libraries: list[str] = []
        self._known_modules = -1

    def pause(self) -> None:
        """End the idle threads of every pool; they start again when they are needed."""
        if count_threads() == 1:
            return
        if len(sys.modules) != self._known_modules:  # looking them up takes a millisecond
            self._libraries = _openmp_libraries()
            self._known_modules = len(sys.modules)
        for path in self._libraries:
            with contextlib.suppress(OSError, AttributeError):  # gone, or older than OpenMP 5.0
                ctypes.CDLL(path, mode=os.RTLD_NOLOAD).omp_pause_resource_all(_PAUSE_SOFT)


def _openmp_libraries() -> list[str]:
    found: dict[str, None] = {}
    with contextlib.suppress(OSError), io.open("/proc/self/maps", encoding="utf-8") as file:
        for line in file:
            _, slash, path = line.rstrip("\n").partition("/")
            name = path.rpartition("/")[2]
            if slash and name.startswith(_OPENMP) and ".so" in name:
                found[slash + path] = None
    return list(found)


def count_threads() -> int:
    """Return the number of operating system threads of this process; 1 where it cannot be told."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 1


def resident_bytes(pid: int | str = "self") -> int:
    """Return how much of a process is in memory, of this one or another; 0 where it is not told."""
    try:
        with io.open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * mmap.PAGESIZE
    except (OSError, IndexError):
        return 0


def bytes_beyond_ours(pid: int) -> int:
    """Return how many bytes a process has in memory beyond what this one has."""
    return max(0, resident_bytes(pid) - resident_bytes())
