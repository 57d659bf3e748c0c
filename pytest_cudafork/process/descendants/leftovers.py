"""Finding and ending what a child leaves: processes, wherever they went, and shared memory.

Each child has a mark which all its descendants inherit, whatever they do: the soft limit on CPU
time without a pause of a real-time process (``RLIMIT_RTTIME``), set to a number so high (73,000
years) that it limits nothing. A descendant that has left the process group, lost its parent, run
another program, closed its descriptors and dropped its environment still has it. Marks are random,
so a process that has one belongs to this child for certain.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from pytest_cudafork.compat import proc_stat
from pytest_cudafork.compat.unpatched import contextlib, io, os, re, resource, signal, time
from pytest_cudafork.process.descendants import process_state

_MARK_BYTES = 7
_BASE = 1 << 61
_LIMIT_LINE = b"Max realtime timeout"
"""What the limit is called in /proc/<pid>/limits."""
_TIDY_SECONDS = 10.0
"""How long a process that tidies up after others may take once they are gone."""
_EXEC_SECONDS = 2.0
"""How long a process may be without a command line: it has none while it begins a program."""
_KILL_SECONDS = 30.0
"""How long a killed process may take to end; one that hangs in a driver may never."""
_LOOK_SECONDS = 0.004
_MOST_LOOKS = 100
"""How often what has come meanwhile is looked at, where processes end all the time."""
_TIDYING = (b"multiprocessing.resource_tracker", b"torch_shm_manager")
"""They remove the shared memory of processes that died; killed with those, they could not."""
_SWEEP_SECONDS = 1.0
_SHARED_MEMORY = "/dev/shm"


def mark_process(cookie: bytes) -> bool:
    """Give this process, and all that descend from it from now on, the mark of a cookie.

    Where the limit is set low already (a real-time desktop) nothing is marked, and only descendants
    that stay in the process group are found: then the answer is False.
    """
    try:
        _, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
        resource.setrlimit(resource.RLIMIT_RTTIME, (_mark_of(cookie), hard))
    except (OSError, ValueError):
        return False
    return True


def is_marked(pid: int, cookie: bytes) -> bool:
    """Whether a process has the mark of a cookie."""
    return _limit_of(pid) == _mark_of(cookie)


def forget_mark() -> None:
    """Take the mark, if there is one, from this process: who ends what has it leaves this alone."""
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
        resource.setrlimit(resource.RLIMIT_RTTIME, (hard, hard))


def _limit_of(pid: int) -> int | None:
    """Return the limit of a process that holds the mark; None if it is gone, or not ours to end."""
    try:
        return resource.prlimit(pid, resource.RLIMIT_RTTIME)[0]
    except PermissionError:
        # Another user's: a test may have become one. Root may ask about it with the capability
        # CAP_SYS_RESOURCE only, which containers seldom have; the file is there for everybody.
        return _limit_told_to_all(pid) if os.geteuid() == 0 else None
    except OSError:
        return None


def _limit_told_to_all(pid: int) -> int | None:
    with contextlib.suppress(OSError), io.open(f"/proc/{pid}/limits", "rb") as file:
        for line in file:
            if line.startswith(_LIMIT_LINE):
                soft = line[len(_LIMIT_LINE) :].split()[0]
                return int(soft) if soft.isdigit() else None
    return None


def _mark_of(cookie: bytes) -> int:
    return _BASE | int.from_bytes(cookie[:_MARK_BYTES], "big")


def marked_processes(cookies: Iterable[bytes]) -> list[int]:
    """Return the living processes with the mark of one of the cookies; this one never does.

    A process that ends while the others are looked at may have forked one just before (a daemon
    does so twice) that was not there yet: then those that have come meanwhile are looked at, too.
    """
    wanted = {_mark_of(cookie) for cookie in cookies}
    seen = {os.getpid()}
    found: list[int] = []
    for _ in range(_MOST_LOOKS):
        there = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        new = [pid for pid in there if pid not in seen]
        seen.update(new)
        has_ended = False
        for pid in new:
            limit = _limit_of(pid)
            if limit in wanted and process_state.lives(pid):
                found.append(pid)
            elif limit in wanted or (limit is None and not proc_stat.is_there(pid)):
                has_ended = True
        if not has_ended:
            break
    return found


def busy_processes(cookie: bytes) -> list[int]:
    """Return the living processes with a mark, without those that only tidy up after others.

    One that is beginning a program is waited for, a moment, until it is known what that is.
    """
    return [pid for pid in marked_processes([cookie]) if _is_busy(pid)]


def _is_busy(pid: int) -> bool:
    until = time.monotonic() + _EXEC_SECONDS
    while (seconds := _seconds_left_to(pid)) == _EXEC_SECONDS and process_state.has_memory(pid):
        if time.monotonic() >= until:
            return True
        time.sleep(_LOOK_SECONDS)
    return not seconds


def descendants(pid: int) -> list[int]:
    """Return the processes that descend from a living one, as far as no link has died."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        current = waiting.pop()
        try:
            tasks = os.listdir(f"/proc/{current}/task")
        except OSError:
            continue
        for task in tasks:
            with contextlib.suppress(OSError, ValueError):
                with io.open(f"/proc/{current}/task/{task}/children", encoding="ascii") as file:
                    children = [int(word) for word in file.read().split()]
                found += children
                waiting += children
    return found


def end(children: Mapping[bytes, int]) -> list[int]:
    """Kill every process with a mark, and remove the shared memory that bears their numbers.

    Those that tidy up after others are given time to do it and go by themselves.

    Args:
        children: The process id of each child that has ended or is to end, by its cookie; 0 where
            it is not known.

    Returns:
        The processes that did not end: they hang in the kernel, or this one may not end them.

    """
    start = time.monotonic()
    seen = set(children.values()) - {0}
    refused: set[int] = set()
    asked = False
    while True:
        found = marked_processes(children)
        waited = time.monotonic() - start
        if refused.issuperset(found) or (asked and waited > _KILL_SECONDS):
            break
        asked = True  # each is killed once at least, however long it took to look
        seen.update(found)
        for pid in found:
            if waited > _seconds_left_to(pid):
                try:
                    os.kill(pid, signal.SIGKILL)
                except PermissionError:
                    refused.add(pid)
                except OSError:  # it has ended
                    continue
        time.sleep(_LOOK_SECONDS)
    _remove_shared_memory(seen)
    return found


class Sweeper:
    """Ends what children leave that ended well, now and then: looking takes half a millisecond."""

    def __init__(self) -> None:
        self._ended: dict[bytes, int] = {}
        self._when_over: list[Callable[[], None]] = []
        self._next = 0.0

    def add(self, cookie: bytes, pid: int, when_over: Callable[[], None] | None = None) -> None:
        """Take note of a child that has ended; ``when_over`` is called when nothing is left."""
        self._ended[cookie] = pid
        if when_over is not None:
            self._when_over.append(when_over)

    def sweep(self, *, now: bool = False) -> list[int]:
        """End what those children have left, if it is time, or ``now``; return what did not end."""
        left: list[int] = []
        if self._ended and (now or time.monotonic() >= self._next):
            try:
                left = end(self._ended)
            finally:  # those that could not be looked for are looked for in the next sweep
                self._next = time.monotonic() + _SWEEP_SECONDS
            self._ended.clear()
            while self._when_over:
                self._when_over.pop()()
        return left


def _seconds_left_to(pid: int) -> float:
    """Return how long a process may live on, in seconds."""
    try:
        with io.open(f"/proc/{pid}/cmdline", "rb") as file:
            command = file.read()
    except OSError:
        return 0.0
    if not command:
        return _EXEC_SECONDS
    return _TIDY_SECONDS if any(name in command for name in _TIDYING) else 0.0


def _remove_shared_memory(pids: Collection[int]) -> None:
    """Remove what torch named after these processes: torch_<pid>_<number>."""
    with contextlib.suppress(OSError):
        for name in os.listdir(_SHARED_MEMORY):
            match = re.match(r"torch_(\d+)_", name)
            if match and int(match[1]) in pids:
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(_SHARED_MEMORY, name))
