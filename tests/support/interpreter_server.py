"""A process that has imported pytest, or torch too, and forks what is as good as a fresh Python.

It is run as a script by ``interpreters.py``, in a process of its own, and imports nothing of this
repository but ``session_ahead.py``, which does what every session of pytest does in the same way,
``imported_ahead.py``, ``interpreter_nested.py`` with ``interpreter_environment.py``, for what a
session starts itself, and the plugin: the children shall import the rest themselves. A child
becomes what ``python script.py``, ``python -m module`` or ``python -c code`` is when its first line
runs: its own directory, environment, arguments, streams and ``sys.path``, and in ``sys.modules``
nothing but pytest and the standard library. torch is imported but put away; ``import torch`` in the
child brings it back. In a session, and in what it starts, a module of the plugin is not executed
but handed out when it is imported. What is said of the packages that are installed has been read.

What a fork cannot give a child: another seed of ``hash()``, other flags, and whatever the
interpreter and the libraries read from the environment when they start. The process that asks
looks after that.

The socket carries one request and one answer at a time: a JSON object with descriptors (standard
input, output, error, and those whose numbers it names as ``fds``) -> ``pid N`` or ``error TEXT``.
The child is handed over to the process that asked: whoever forks it ends, and the nearest ancestor
that has declared itself a subreaper becomes its parent, so that it waits for it as for any other
child of its own.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import ctypes
import fcntl
import gc
import importlib
import importlib.abc
import importlib.machinery
import io
import json
import linecache
import os
import runpy
import signal
import socket
import sys
import tempfile
import threading
import types
import warnings
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

_PR_SET_PDEATHSIG = 1
_MADV_COLLAPSE = 25  # Linux 6.1
_HUGE_PAGE = 1 << 21
_LONGEST_REQUEST = 1 << 20
_MOST_FDS = 16
_EXIT = os._exit  # coverage may put its own there, which does more
_PACKAGE = "pytest_cudafork"
# What sessions import of the plugin; one of these modules needs torch.
_OF_SESSIONS = (
    *("baseline", "call", "check", "compat", "counted", "distributions", "documents", "errors"),
    *("fixtures", "gpus", "health", "hooks", "hosts", "imports", "intent", "isolate", "observe"),
    *("page", "patch", "plugin", "process", "report", "settings"),
)
_WITH_TORCH = ("compat.torch_graphs",)
_WITH_COPIES = "compat.unpatched"  # of the standard library
_PYTEST = ("pytest", "_pytest.config")
# What a session imports beside pytest, from the standard library and the plugin's dependencies.
_BESIDE_PYTEST = (
    *("faulthandler", "getpass", "json", "logging", "mmap", "pickle", "pwd", "resource", "secrets"),
    *("multiprocessing.connection", "multiprocessing.resource_tracker", "sysconfig", "uuid"),
    *("xml.etree.ElementTree", "cloudpickle", "filelock"),
)


def main() -> NoReturn:
    """Serve until the other end is closed; in a child, run what was asked for.

    Command line: the number of the socket, the names of modules to put away.
    """
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    _die_with_parent()
    os.setpgid(0, 0)  # Ctrl-C is for those who asked, and for the children
    gc.disable()
    filters = list(warnings.filters)
    # they stand beside this file, and no child shall find them
    session_ahead = importlib.import_module("session_ahead")
    imported_ahead = importlib.import_module("imported_ahead")
    environment = importlib.import_module("interpreter_environment")
    nested = importlib.import_module("interpreter_nested")
    sys.path[:] = sys.path[1:]
    for module in (session_ahead, imported_ahead, environment, nested):
        del sys.modules[module.__name__]
    for name in (*_PYTEST, *_BESIDE_PYTEST):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    plugins = session_ahead.plugins_of_pytest()
    imported_ahead.InstalledPackages().answer()
    session_ahead.ReadCode(_PACKAGE)
    session_ahead.FixtureNames(plugins).use()
    session_ahead.rewrite_fast()
    prepared = session_ahead.PreparedConfig()
    of_session = nested.Nested(environment)
    ours = imported_ahead.PackageAhead(_PACKAGE, _OF_SESSIONS, but=_WITH_TORCH, first=_WITH_COPIES)
    assert not ours.others, f"imported with the plugin: {ours.others[:9]}"
    warnings.filters[:] = filters  # type: ignore[index]
    put_away: list[Any] = []
    for name in sys.argv[2:]:
        put_away.append(imported_ahead.PutAway(name, tuple(put_away)))
    _leave_finalizers_to_the_server()
    problem = _why_unclean()
    control.send(f"error {problem}".encode() if problem else b"ready")
    gc.collect()
    gc.freeze()
    if put_away:
        _use_huge_pages()
    request = _serve(control)
    if request.get("nested"):
        request = _with_a_server_of_its_own(request, of_session)
    gc.enable()
    sys.meta_path[:0] = put_away
    if (request["kind"], request["what"]) == ("-m", "pytest") or "options" in request:
        sys.meta_path.insert(0, ours)
        prepared.offer()
    _end(_outcome(request))


def _with_a_server_of_its_own(request: dict[str, Any], of_session: Any) -> dict[str, Any]:
    """Fork a server for what a session starts; returns in the session, and in each of those."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    session = os.getpid()
    if os.fork():
        theirs.close()
        of_session.take_over(ours, request)
        return request
    ours.close()
    _die_with_parent()
    if os.getppid() != session:
        os._exit(0)
    os.setpgid(0, 0)
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):  # whoever reads what the session writes waits for the end
        os.dup2(nothing, fd)
    os.close(nothing)
    return _serve(theirs)


def _leave_finalizers_to_the_server() -> None:
    """Finalize in no child what is imported ahead.

    torch takes its operators away at exit, one by one, and that copies 30 MiB of what a child
    shares with the server.
    """
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]  # no other way
        finalizer.atexit = False


def _use_huge_pages() -> None:
    """Let the kernel keep in huge pages what was imported, where it can.

    A fork copies an entry for each page, and a child that ends lets go of each: with torch, that is
    most of what both cost. A child still copies only those small pages that it writes to.
    """
    madvise = ctypes.CDLL(None).madvise
    for start, end in _private_memory():
        first = -(-start // _HUGE_PAGE) * _HUGE_PAGE
        for address in range(first, end - _HUGE_PAGE + 1, _HUGE_PAGE):
            # A kernel that cannot do it, or not here, says so and changes nothing.
            madvise(ctypes.c_void_p(address), ctypes.c_size_t(_HUGE_PAGE), _MADV_COLLAPSE)


def _private_memory() -> Iterator[tuple[int, int]]:
    """Give start and end of what this process has allocated and may write to."""
    with contextlib.suppress(OSError), open("/proc/self/maps", encoding="utf-8") as file:
        for line in file.readlines():
            addresses, rights, _, _, _, *name = line.split()
            if rights.startswith("rw-p") and (not name or name[0].startswith(("[heap", "[anon"))):
                start, _, end = addresses.partition("-")
                yield int(start, 16), int(end, 16)


def _why_unclean() -> str:
    """Return why this process must not be forked; "" if it may."""
    if threading.active_count() > 1:
        return f"threads run: {threading.enumerate()}"
    with contextlib.suppress(OSError), open("/proc/self/maps", encoding="utf-8") as file:
        if "libcuda.so" in file.read():
            return "a CUDA driver is loaded"
    return ""


def _serve(control: socket.socket) -> dict[str, Any]:
    """Answer requests; returns in each child, and ends this process with the one that asks."""
    while True:
        data, fds, _, _ = socket.recv_fds(control, _LONGEST_REQUEST, _MOST_FDS)
        if not data:
            os._exit(0)
        request = _request(data)
        if request is None:
            for fd in fds:
                os.close(fd)
            continue
        begin, waiting = os.pipe2(os.O_CLOEXEC)
        number, telling = os.pipe2(os.O_CLOEXEC)
        helper = os.fork()
        if not helper:
            child = os.fork()
            if child:
                os.write(telling, str(child).encode())
                os._exit(0)
            os.close(waiting)
            if not os.read(begin, 1):  # waits until it has its parent
                os._exit(1)  # the server has died, and nobody knows of this process
            _keep(fds, request.get("fds", (0, 1, 2)), {control.fileno(), telling, waiting, begin})
            control.detach()
            return request
        for fd in (begin, telling, *fds):
            os.close(fd)
        os.waitpid(helper, 0)
        answer = os.read(number, 20)
        control.send(b"pid " + answer if answer else b"error the child could not be forked")
        with contextlib.suppress(BrokenPipeError):  # it was killed already
            os.write(waiting, b"!")
        os.close(waiting)
        os.close(number)


def _keep(fds: Sequence[int], numbers: Sequence[int], others: set[int]) -> None:
    """Give the descriptors these numbers, and close all that this process had beside them."""
    free = max(*numbers, *fds, *others) + 1
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD, free) for fd in fds]
    os.closerange(3, free)
    for number, fd in zip(numbers, moved, strict=True):
        os.dup2(fd, number)
        os.close(fd)


def _request(data: bytes) -> dict[str, Any] | None:
    """Return what is asked for; None if nobody asked.

    A forked child of the test process has this socket as well, and some tests have theirs write
    to all that it has. An answer to that would be taken for the answer to the next request.
    """
    try:
        request = json.loads(data)
    except ValueError:
        return None
    return request if isinstance(request, dict) else None


def _become(request: dict[str, Any]) -> None:
    """Take over what the child is to find around itself."""
    with contextlib.suppress(OSError):
        os.setsid() if request["new_session"] else os.setpgid(0, request["group"])
    os.chdir(request["cwd"])
    os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["environ"])
    _show_environment()
    # The flag alone, not ``sys.flags``; what the child starts reads the environment.
    options = request.get("options", ())
    written = request["environ"].get("PYTHONDONTWRITEBYTECODE")
    sys.dont_write_bytecode = bool(written) or "-B" in options
    tempfile.tempdir = None
    _open_streams(unbuffered="-u" in options)
    sys.orig_argv[:] = request["command"]


def _show_environment() -> None:
    """Write the environment to where the kernel has the one that this process began with.

    Who looks for a process by its environment reads ``/proc/<pid>/environ``: tests that look for
    what was left behind, and the plugin, for the processes that use a GPU. Nothing in this process
    refers to that memory any more, because every variable was replaced. The server is started with
    a long variable, so that there is room.
    """
    with open("/proc/self/stat", "rb") as file:
        # The name of the program, in parentheses, may hold anything; fields are counted after it.
        fields = file.read().rpartition(b")")[2].split()
    start, end = int(fields[47]), int(fields[48])
    text = b"".join(b"%b=%b\0" % pair for pair in os.environb.items())[: end - start]
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, text, len(text))


def _open_streams(*, unbuffered: bool) -> None:
    """Make the streams that Python makes at its start; the server's know of other files."""
    stdout: Any = sys.stdout
    buffered = not (unbuffered or stdout.write_through)
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        mode = "r" if fd == 0 else "w"
        old: io.TextIOWrapper = getattr(sys, name)
        buffering = -1 if buffered or fd == 0 else 0
        binary: Any = open(fd, mode + "b", buffering, closefd=False)  # noqa: SIM115  # it stays
        getattr(binary, "raw", binary).name = f"<{name}>"
        stream: Any = io.TextIOWrapper(
            binary,
            old.encoding,
            old.errors,
            newline="\n",
            line_buffering=buffered and (fd == 2 or binary.isatty()),
            write_through=not buffered,
        )
        stream.mode = mode
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _run(request: dict[str, Any]) -> None:
    """Run a module, a script or a text as the main program."""
    kind, what = request["kind"], request["what"]
    path = request["environ"].get("PYTHONPATH", "").split(os.pathsep)
    absolute = [os.path.abspath(entry) for entry in path if entry]
    first = {"-m": os.getcwd(), "-c": ""}.get(kind, os.path.dirname(os.path.realpath(what)))
    sys.path[:] = [first, *dict.fromkeys([*absolute, *sys.path])]
    sys.argv[:] = [kind or what, *request["args"]]
    if kind == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
        return
    program = types.ModuleType("__main__")
    program.__dict__["__builtins__"] = builtins
    if kind == "-c":
        program.__loader__ = importlib.machinery.BuiltinImporter
        code = compile(what, "<string>", "exec")
        if sys.version_info >= (3, 13):  # a traceback shows its lines
            lines = [f"{line}\n" for line in what.splitlines()]
            linecache.cache["<string>"] = (len(what), None, lines, "<string>")
    else:
        program.__file__ = os.path.abspath(what)
        program.__dict__["__cached__"] = None
        program.__loader__ = importlib.machinery.SourceFileLoader("__main__", program.__file__)
        with open(what, "rb") as file:
            code = compile(file.read(), program.__file__, "exec")
    sys.modules["__main__"] = program
    exec(code, program.__dict__)


def _outcome(request: dict[str, Any]) -> int:
    """Run the program and return its exit status as Python would; negative: the signal."""
    try:
        _become(request)
        _run(request)
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        sys.stderr.write(f"{error.code}\n")
        return 1
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next  # to the program's first line
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _end(status: int) -> NoReturn:
    """End as Python does, but for the interpreter, which is not taken apart.

    That would copy every page that the child shares with the server: with torch, it takes a fifth
    of a second.
    """
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads; has no public name
        atexit._run_exitfuncs()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # closed, or replaced
                stream.flush()
        if status < 0:
            signal.signal(-status, signal.SIG_DFL)
            os.kill(os.getpid(), -status)
        _EXIT(status)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    main()
