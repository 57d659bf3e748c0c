"""The watch over a program that others start: begun by a variable, in the program itself.

A line in a ``.pth`` file of the environment calls ``begin`` where ``PYTEST_CUDA_FORK_RUN`` names a
report. The program keeps its process and has no child of ours: what writes the report is started
beside it (``waiter.py``).
"""

from __future__ import annotations

import sys

from pytest_cudafork.compat.unpatched import contextlib, os, struct, time
from pytest_cudafork.documents.writing import try_to_write
from pytest_cudafork.observe.base.descriptors import LAST_STREAM, above_the_streams
from pytest_cudafork.observe.handed_on import ROOT, WatchSettings, variables_for_program
from pytest_cudafork.programs.own_ledger import new_ledger, seen_device
from pytest_cudafork.settings import environment
from pytest_cudafork.settings.arguments import check_new_file

LEVEL = "poison"
_AT_SECURE = 23  # of the values that the kernel hands to a program, see getauxval(3)
_MARK_BYTES = 16
_CODE = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from pytest_cudafork.programs.waiter import main; main(sys.argv[2:])"
)


def begin() -> None:
    """Begin the watch; whatever goes wrong is told on stderr, and the program goes on without.

    It is told once: neither by what the program starts, nor where ``.pth`` files are read twice.
    """
    if environment.is_set(environment.WATCH) or sys.platform != "linux":
        return  # a child of a watched program, or of a session
    if _has_more_rights():
        return  # its environment is that of somebody who may not write where it may
    report = environment.value(environment.RUN).replace("%p", str(os.getpid()))
    try:
        _begin(os.path.abspath(report))
    except Exception as error:
        environment.put(environment.RUN, "")
        with contextlib.suppress(AttributeError, OSError, ValueError):
            todo = "; name a file in a folder that is there and can be written"
            todo = todo if isinstance(error, OSError) else ""
            sys.stderr.write(f"pytest-cudafork: {environment.RUN}: no watch: {error}{todo}\n")


def _has_more_rights(vector: str = "/proc/self/auxv") -> bool:
    """Whether this program runs with more rights than who started it, as set-user-ID programs do.

    Args:
        vector: Where the kernel shows what it handed to the program.

    """
    try:
        with open(vector, "rb") as file:
            data = file.read()
    except OSError:
        return (os.getuid(), os.getgid()) != (os.geteuid(), os.getegid())
    pair = struct.Struct("@LL")
    return any(value for key, value in pair.iter_unpack(data) if key == _AT_SECURE)


def _begin(report: str) -> None:
    """Begin it.

    Raises:
        OSError: The report or the ledger cannot be written, or no process be started.
        RuntimeError: No program is known that could write the report.
        ValueError: The report would be written over a program.

    """
    check_new_file(report)
    try_to_write(report)  # better known now
    with contextlib.ExitStack() as undo:
        settings = WatchSettings(new_ledger(undo, outlives=True), seen_device(None), LEVEL)
        mark = os.urandom(_MARK_BYTES)
        _start_waiter(report, settings, mark)
        undo.pop_all()  # the waiter removes it
    from pytest_cudafork.check.watch import begin_inherited
    from pytest_cudafork.process.descendants import leftovers

    leftovers.mark_process(mark)
    given = variables_for_program(settings, str(os.getpid()), os.environ)
    for name, text in {**given, environment.PHASE: environment.PROGRAM}.items():
        environment.put(name, text)
    begin_inherited()


def _start_waiter(report: str, settings: WatchSettings, mark: bytes) -> None:
    """Start the process that waits, as no child of this one, in a session of its own.

    Raises:
        OSError: No process can be had.
        RuntimeError: It is not known which program is a Python.

    """
    if not sys.executable:  # of a program that has Python built in
        raise RuntimeError("what writes the report is a Python, and sys.executable names none")
    pidfd = above_the_streams(os.pidfd_open(os.getpid()))
    try:
        words = [report, settings.to_text(), mark.hex(), str(os.getpid()), str(pidfd)]
        began = str(time.monotonic())
        code = [sys.executable, "-I", "-S", "-c", _CODE, ROOT, *words, began, *sys.orig_argv]
        child = os.fork()
        if child == 0:
            try:
                os.setsid()
                if os.fork() == 0:
                    _become(code, pidfd)
            finally:
                os._exit(0)
        with contextlib.suppress(ChildProcessError):  # SIGCHLD is ignored: the kernel has reaped it
            os.waitpid(child, 0)
    finally:
        os.close(pidfd)


def _become(command: list[str], pidfd: int) -> None:
    """Turn this process into the waiter, which holds nothing of the program's.

    Raises:
        OSError: It cannot be executed.

    """
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(LAST_STREAM + 1):
        os.dup2(nowhere, stream)
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > LAST_STREAM and fd != pidfd:  # one is that of the list itself, closed by now
            with contextlib.suppress(OSError):
                os.close(fd)
    os.set_inheritable(pidfd, True)
    os.execv(command[0], command)
