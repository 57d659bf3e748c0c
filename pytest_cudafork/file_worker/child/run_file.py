"""One file, run as ``python FILE ARGUMENTS`` would, in a process that was forked for it.

What differs from a fresh interpreter: modules that the template has imported are there already (a
file beside which lies a module of the same name is not run here, but by the same job in a fresh
interpreter), the hash seed is the template's, and standard input is empty.
"""

from __future__ import annotations

import builtins
import itertools
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import SourceFileLoader
from types import ModuleType

from pytest_cudafork.compat import standard_library, tracebacks
from pytest_cudafork.compat.unpatched import contextlib, os, signal
from pytest_cudafork.process import child
from pytest_cudafork.process.protocol import messages

FAILED, USAGE, INTERRUPTED = 1, 2, 128 + signal.SIGINT
"""As Python ends on an exception, on a file that is not there, and on an interrupt."""
_HIGHEST = 255
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
    status = run_program(filename, task.data["arguments"])
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


def run_program(filename: str, arguments: Sequence[str]) -> int:
    """Run a file as ``__main__``, wait for its threads, and return the exit status.

    Afterwards ``__main__`` is still the file's: what it has registered for its end may need it.
    """
    sys.argv = [filename, *arguments]
    if not getattr(sys.flags, "safe_path", False):  # Python 3.11 has it
        sys.path[:1] = [os.path.dirname(os.path.realpath(filename))]
    status = _status_of(filename)
    try:
        standard_library.wait_for_threads()
    except BaseException:
        _show_error()
        status = status or FAILED
    return status


def _status_of(filename: str) -> int:
    path = os.path.abspath(filename)
    loader = SourceFileLoader("__main__", path)
    try:
        source = loader.get_data(path)
    except OSError as error:
        sys.stderr.write(f"can't open file {path!r}: {error}\n")
        return USAGE
    try:
        code = loader.source_to_code(source, path)
        main = ModuleType("__main__")
        vars(main).update(__file__=path, __loader__=loader, __builtins__=builtins, __cached__=None)
        sys.modules["__main__"] = main
        exec(code, vars(main))
    except SystemExit as end:
        return exit_status(end.code)
    except KeyboardInterrupt:
        _show_error()
        return INTERRUPTED
    except BaseException:
        _show_error()
        return FAILED
    return 0


def exit_status(code: object) -> int:
    """Return the exit status for what ``sys.exit`` was given; a text is written.

    A number that does not fit is 255: the kernel would keep its last 8 bits, and these may be 0.
    """
    if code is None:
        return 0
    if isinstance(code, int):
        return code if 0 <= code <= _HIGHEST else _HIGHEST
    sys.stderr.write(f"{code}\n")
    return FAILED


def _show_error() -> None:
    """Let the program's hook show the exception that is being handled, without frames of ours."""
    error = sys.exc_info()[1]
    assert error is not None, "called where one is handled"
    frames = tracebacks.without_outer(error.__traceback__, lambda filename: filename == __file__)
    sys.excepthook(type(error), error.with_traceback(frames), frames)
