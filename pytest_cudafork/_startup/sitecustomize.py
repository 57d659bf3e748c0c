"""Begins the watch in Python processes that a watched session starts by exec.

This file is found through ``PYTHONPATH``, which the session sets for its children; it steps out of
the way of the ``sitecustomize`` that the process would otherwise have had. All it knows of the
session is what the environment says.
"""

import os
import sys


def _hand_over() -> None:
    """Import the ``sitecustomize`` that this one hides, as if this one did not exist."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != here]
    own = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        if own is not None:
            sys.modules["sitecustomize"] = own


def _watch() -> None:
    root = os.environ.get("_CUDAFORK_ROOT", "")
    if not root or not os.environ.get("_CUDAFORK_WATCH"):
        return
    sys.path.append(root)  # the process may run in an environment of its own
    try:
        from pytest_cudafork.check.watch import begin_inherited
    except Exception:  # not only ImportError: the code may be too new for that Python
        return  # another Python, in which the plugin cannot run
    finally:
        sys.path.remove(root)
    begin_inherited()


_watch()
_hand_over()
