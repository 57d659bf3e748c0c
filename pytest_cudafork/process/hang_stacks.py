"""How a process that hangs is made to write its stacks and die of it.

The process has armed faulthandler; what stands in the way is
a signal that it blocks or ignores, or that it has become another program meanwhile.
"""

from __future__ import annotations

from pytest_cudafork.compat.unpatched import contextlib, ctypes, os, re, signal, time
from pytest_cudafork.process.descendants import process_state

_SIGNALS = (signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
"""What faulthandler writes stacks on, best first; a test may have taken one of them away."""
_PTRACE_DETACH = 17
_PTRACE_SEIZE = 0x4206
_PTRACE_INTERRUPT = 0x4207
_PTRACE_SETSIGMASK = 0x420B
_STOP_SECONDS = 5.0
_FATAL = re.compile(r"\AFatal Python error: .*\n+")


def ask(pid: int) -> bool:
    """Send the signal on which a process writes its stacks; False if there is none.

    A process that blocks the signal in every thread has it unblocked by ``ptrace`` first, where the
    system allows that; one that is stopped is continued.
    """
    signum = _signal_for(pid)
    if signum is None:
        return False
    if _blocked_everywhere(pid, signum):
        _unblock(pid)
    with contextlib.suppress(OSError):
        os.kill(pid, signum)
        os.kill(pid, signal.SIGCONT)
    return True


def _signal_for(pid: int) -> int | None:
    """Return the first of the signals that has a handler."""
    caught = _mask(pid, "SigCgt")
    return next((one for one in _SIGNALS if caught >> (one - 1) & 1), None)


def _blocked_everywhere(pid: int, signum: int) -> bool:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return False
    masks = [_mask(int(thread), "SigBlk") for thread in threads]
    return bool(masks) and all(mask >> (signum - 1) & 1 for mask in masks)


def _mask(number: int, name: str) -> int:
    """Return one of the signal masks of a process or a thread; 0 if it cannot be read."""
    return int(process_state.status_of(number, name) or "0", 16)


def _unblock(pid: int) -> None:
    """Clear the signal mask of a process's first thread, as a debugger would.

    Nothing else reaches a process that has blocked everything and hangs in C code. Where ptrace is
    forbidden (a container, a debugger that is there already) nothing happens.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    libc.ptrace.restype = ctypes.c_long
    if libc.ptrace(_PTRACE_SEIZE, pid, None, None) != 0:
        return
    try:
        libc.ptrace(_PTRACE_INTERRUPT, pid, None, None)
        if _stopped(pid):
            nothing = ctypes.c_uint64(0)
            address = ctypes.cast(ctypes.byref(nothing), ctypes.c_void_p)
            libc.ptrace(_PTRACE_SETSIGMASK, pid, ctypes.c_void_p(8), address)
    finally:
        libc.ptrace(_PTRACE_DETACH, pid, None, None)


def _stopped(pid: int) -> bool:
    """Wait until the traced process has stopped; it is never reaped here."""
    until = time.monotonic() + _STOP_SECONDS
    while time.monotonic() < until:
        try:
            if os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None:
                return True
        except OSError:
            return False
        time.sleep(0.002)
    return False


def written_to(fd: int, *, asked: bool) -> str:
    """Return the stacks in a file; ``asked`` if they were, by a signal, which is no news."""
    text = os.pread(fd, os.fstat(fd).st_size, 0).decode("utf-8", "replace").strip()
    return _FATAL.sub("", text) if asked else text
