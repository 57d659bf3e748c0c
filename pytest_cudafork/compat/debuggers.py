"""What a debugger gets in a process that has no terminal: an error that says so, at once.

Without it ``breakpoint()`` reads the end of a file there; or, in a fork of a pytest process that
captures, waits for the terminal of others until the time limit is over.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

_TEXT = (
    "breakpoint() and set_trace() need the terminal, which a process of its own does not have. "
    "With --pdb, --trace or --cuda-fork-isolate=none isolated tests run in the pytest process."
)


def refuse(variable: Callable[[], str]) -> None:
    """Let ``breakpoint()`` and pytest's ``set_trace()`` fail in this process from now on.

    Debuggers of the user's choice are left alone, for some need no terminal: another
    ``sys.breakpointhook``, that of ``--pdbcls``, and what ``variable`` returns when it comes to
    that: ``PYTHONBREAKPOINT``.
    """

    def refused(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if variable() or _is_of_choice():
            return sys.__breakpointhook__(*args, **kwargs)
        return _refused()

    if sys.breakpointhook is sys.__breakpointhook__:
        sys.breakpointhook = refused
    refuse_pytests()


def refuse_pytests() -> None:
    """Let pytest's alone fail (``_pytest.debugging.pytestPDB._init_pdb``), if it is imported."""
    debugger = _pytests()
    if debugger is not None and not _is_of_choice():
        debugger._init_pdb = _refused


def _refused(*_: Any, **__: Any) -> None:
    __tracebackhide__ = True
    raise RuntimeError(_TEXT)


def _pytests() -> Any:
    return getattr(sys.modules.get("_pytest.debugging"), "pytestPDB", None)


def _is_of_choice() -> bool:
    """Whether pytest has a debugger of the user's choice (``pytestPDB._config``)."""
    config = getattr(_pytests(), "_config", None)
    return config is not None and bool(config.getvalue("usepdb_cls"))
