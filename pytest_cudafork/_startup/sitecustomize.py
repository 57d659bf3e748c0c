"""Begins the watch, and applies ``child_patch``, in Python processes that a session starts by exec.

This file is found through ``PYTHONPATH``, which the session sets for its children; it steps out of
the way of the ``sitecustomize`` that the process would otherwise have had. All it knows of the
session is what the environment says.

Any Python that the session starts reads it. So its syntax is one that Python 2 knows, too: else
that would say in the output of its program that it could not.
"""

import gc
import os
import sys

_OLDEST = (3, 10)


def _hand_over():
    # type: () -> None
    """Import the ``sitecustomize`` that this one hides, as if this one did not exist."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != here]
    own = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if getattr(error, "name", "sitecustomize") != "sitecustomize":  # Python 2 says no name
            raise
        if own is not None:
            sys.modules["sitecustomize"] = own


def _take_off(root):
    # type: (str) -> None
    """Take the last entry of this name off ``sys.path``: one before it is the process's own."""
    for place in range(len(sys.path) - 1, -1, -1):
        if sys.path[place] == root:
            del sys.path[place]
            return


def _watch(root):
    # type: (str) -> None
    sys.path.append(root)  # the process may run in an environment of its own
    collects = gc.isenabled()
    gc.disable()  # all that is imported stays: to look for garbage in it takes a tenth of the time
    try:
        try:
            from pytest_cudafork.check.watch import begin_inherited
        except Exception:  # not only ImportError: the code may be too new for that Python
            return  # another Python, in which the plugin cannot run
        finally:
            _take_off(root)
        begin_inherited()
    finally:
        if collects:
            gc.enable()


def _captures(root):
    # type: (str) -> None
    """Look at the captures of the program."""
    sys.path.append(root)
    try:
        from pytest_cudafork.capture.in_programs.begin import begin_inherited

        begin_inherited()
    except Exception as error:
        if sys.stderr is not None:
            sys.stderr.write("pytest-cudafork: captures are not looked at: " + repr(error) + "\n")
    finally:
        _take_off(root)


def _patch(root):
    # type: (str) -> None
    """Apply the patches of the test; its children do so in the case of a fork server."""
    if any(server in argument for argument in sys.orig_argv for server in _SERVERS):
        return
    sys.path.append(root)
    try:
        from pytest_cudafork.patch.applying.inherited import begin
    except Exception as error:
        text = type(error).__name__ + ": " + str(error)
        text = "child_patch does not hold in process " + str(os.getpid()) + ": " + text
        if sys.stderr is not None:
            sys.stderr.write("pytest-cudafork: " + text + "\n")
        return
    finally:
        _take_off(root)
    begin()


# What outlives the test that starts it, by what it runs.
_SERVERS = (
    "from multiprocessing.forkserver import main",
    "from multiprocessing.resource_tracker import main",
    "from pytest_cudafork.process.fork_server import main",
)

_ROOT = os.environ.get("_CUDAFORK_ROOT", "")
if sys.version_info < _OLDEST:  # another Python, in which the plugin cannot run
    _ROOT = ""
if _ROOT and os.environ.get("_CUDAFORK_WATCH"):
    _watch(_ROOT)
if _ROOT and os.environ.get("_CUDAFORK_WATCH") and os.environ.get("_CUDAFORK_CAPTURES"):
    _captures(_ROOT)
if _ROOT and os.environ.get("_CUDAFORK_PATCHES"):
    _patch(_ROOT)
_hand_over()
