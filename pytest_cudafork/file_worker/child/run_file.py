"""One file, run as ``python FILE ARGUMENTS`` would, in a process that was forked for it.

What differs from a fresh interpreter: modules that the template has imported are there already (a
file beside which lies a module of the same name is not run here, but by the same job in a fresh
interpreter), the hash seed is the template's, and standard input is empty.
"""

from __future__ import annotations

import atexit
import builtins
import itertools
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import SourceFileLoader
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING

from pytest_cudafork.compat import standard_library, tracebacks
from pytest_cudafork.compat.unpatched import contextlib, os, signal
from pytest_cudafork.file_worker.child.open_files import write_held_back
from pytest_cudafork.process import child
from pytest_cudafork.process.protocol import messages

if TYPE_CHECKING:
    from pytest_cudafork.file_worker.child.template import Template

FAILED, USAGE, INTERRUPTED = 1, 2, 128 + signal.SIGINT
"""As Python ends on an exception, on a file that is not there, and on an interrupt."""
_HIGHEST = 255
_OUTPUT_LOST = 120
"""As Python ends where it cannot write what is left of standard output."""
_MODULE_ENDS = (".py", ".so")
_NEVER_IN_A_FOLDER = ("built-in", "frozen")
"""Where modules come from that are found before any folder is looked at."""
_OWN_PACKAGE = __name__.partition(".")[0]


def run(task: child.Task) -> int:
    """Run the file of a task and return its exit status; the entry point of a job."""
    channel = task.the_channel()
    filename: str = task.data["filename"]
    child.adopt_streams()
    hidden = hidden_modules(os.path.dirname(os.path.realpath(filename)))
    if task.prepared is None:
        forget_modules(hidden)
    elif hidden:
        told = (f"{name} ({there})" for name, there in hidden.items())
        channel.send(messages.NotLoaded("; ".join(told)))
        return 0
    inherited = () if task.prepared is None else task.prepared.open_files
    atexit.register(write_held_back, inherited)  # the first is the last that is called
    status = run_program(filename, task.data["arguments"], task.prepared)
    if not channel.is_mine:  # a process that the program has forked, and that came to its end, too
        child.leave(status)
    channel.send(messages.Exited(status, ""))
    return status


def hidden_modules(folder: str) -> dict[str, str]:
    """Return which modules in a file's folder it could not import, as others have their names.

    A program's own folder comes first where it looks for modules, but here some are imported.

    Returns:
        Where the module comes from that is imported here, by its name.

    """
    found: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(folder)):
            path = os.path.join(folder, name)
            stem = name.partition(".")[0]
            if name.endswith(_MODULE_ENDS):
                here = path
            elif os.path.isfile(os.path.join(path, "__init__.py")):
                here = os.path.join(path, "__init__.py")
            else:
                continue
            module = sys.modules.get(stem)
            there = getattr(module, "__file__", None)
            if module is None or stem == "__main__":
                continue
            if not (isinstance(there, str) and os.path.realpath(there) == os.path.realpath(here)):
                found[stem] = there if isinstance(there, str) else "built in"
    return found


def forget_modules(names: Iterable[str]) -> None:
    """Let the next import of these modules find those in the program's folder.

    In a fresh interpreter they are imported because this package needs them; it keeps its own. What
    every interpreter imports at its start, or has built in, a program could not replace either.
    """
    at_start = set(itertools.takewhile(lambda name: name != _OWN_PACKAGE, sys.modules))
    for name in names:
        spec = getattr(sys.modules[name], "__spec__", None)
        if name in at_start or getattr(spec, "origin", None) in _NEVER_IN_A_FOLDER:
            continue
        for each in [each for each in sys.modules if each.partition(".")[0] == name]:
            del sys.modules[each]


def run_program(filename: str, arguments: Sequence[str], template: Template | None = None) -> int:
    """Run a file as ``__main__``, wait for its threads, and return the exit status.

    Afterwards ``__main__`` is still the file's: what it has registered for its end may need it.

    Args:
        filename: Its path.
        arguments: What follows it in ``sys.argv``.
        template: What this process was forked from; None: it is a fresh interpreter.

    """
    path = os.path.abspath(filename)
    folder = os.path.dirname(os.path.realpath(filename))
    safe = getattr(sys.flags, "safe_path", False)  # Python 3.11 has it
    if template is not None:
        template.take_over(None if safe else folder)
        _let_logging_end()
    elif not safe:
        sys.path[:1] = [folder]
    sys.argv = [filename, *arguments]
    status = _status_of(path)
    try:
        standard_library.wait_for_threads()
    except BaseException as error:
        raised = error
    else:
        return _flushed(status)
    return _flushed(_show(raised) or status or FAILED)


def _let_logging_end() -> None:
    """Have what handlers keep written at the end, as ``logging`` does it where it is imported."""
    shutdown = getattr(sys.modules.get("logging"), "shutdown", None)
    if shutdown is not None:
        atexit.register(shutdown)


def _flushed(status: int) -> int:
    """Return the exit status, or that of Python for output that cannot be written any more."""
    stream = getattr(sys, "stdout", None)
    try:
        if stream is not None and not getattr(stream, "closed", False):
            stream.flush()
    except Exception as error:
        _write_error(f"standard output cannot be written: {error!r}\n")
        return _OUTPUT_LOST
    return status


def _status_of(path: str) -> int:
    loader = SourceFileLoader("__main__", path)
    try:
        source = loader.get_data(path)
    except OSError as error:
        _write_error(f"can't open file {path!r}: {error}\n")
        return USAGE
    try:
        code = loader.source_to_code(source, path)
        main = ModuleType("__main__")
        vars(main).update(__file__=path, __loader__=loader, __builtins__=builtins, __cached__=None)
        sys.modules["__main__"] = main
        exec(code, vars(main))
    except SystemExit as end:
        return exit_status(end.code)
    except BaseException as error:
        raised = error
    else:
        return 0
    return _show(raised)


def exit_status(code: object) -> int:
    """Return the exit status for what ``sys.exit`` was given; a text is written.

    A number that does not fit is 255: the kernel would keep its last 8 bits, and these may be 0.
    """
    if code is None:
        return 0
    if isinstance(code, int):
        return code if 0 <= code <= _HIGHEST else _HIGHEST
    text = ""
    with contextlib.suppress(Exception):  # it has none; the status says it
        text = str(code)
    _write_error(f"{text}\n")
    return FAILED


def _write_error(text: str) -> None:
    """Write to standard error, as far as that can be had; where there is none, to the process's."""
    with contextlib.suppress(Exception):
        stream = getattr(sys, "stderr", None)
        if stream is None:
            os.write(2, text.encode("utf-8", "backslashreplace"))
        else:
            stream.write(text)


def _show(error: BaseException) -> int:
    """Let the program's hook show an exception, without frames of ours; return the exit status.

    What the hook raises itself is shown beside it; it may also say the status by ``sys.exit``.
    """
    frames = _own_frames(error)
    status = INTERRUPTED if isinstance(error, KeyboardInterrupt) else FAILED
    hook = getattr(sys, "excepthook", None)
    if not hasattr(sys, "excepthook"):
        _write_error("sys.excepthook is missing\n")
        hook = sys.__excepthook__
    try:
        hook(type(error), error.with_traceback(frames), frames)  # type: ignore[misc]
    except SystemExit as end:
        return exit_status(end.code)
    except BaseException as failed:
        _write_error("Error in sys.excepthook:\n")
        own = _own_frames(failed)
        sys.__excepthook__(type(failed), failed.with_traceback(own), own)
        _write_error("\nOriginal exception was:\n")
        sys.__excepthook__(type(error), error, frames)
    return status


def _own_frames(error: BaseException) -> TracebackType | None:
    return tracebacks.without_outer(error.__traceback__, lambda filename: filename == __file__)
