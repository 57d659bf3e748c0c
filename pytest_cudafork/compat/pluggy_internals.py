"""What the plugin uses of pluggy that has no public name.

pytest calls its hooks through pluggy. An isolated test has some of them called in a process where
not every plugin may hear them, and where each frame on the stack is one that the test has not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any


def keep_plugins(manager: Any, hook: str, kept: Sequence[object]) -> None:
    """Let a hook reach these plugins alone: ``_hookimpls`` of pluggy's hook caller.

    pluggy can leave plugins out of one call (``subset_hook_caller``), not out of all.
    """
    implementations = getattr(manager.hook, hook)._hookimpls
    mine = set(map(id, kept))  # not all plugins can be compared
    implementations[:] = [one for one in implementations if id(one.plugin) in mine]


def call_of_first_result(manager: Any, caller: Any, **arguments: object) -> Callable[[], object]:
    """Return the call of a hook that ends with the first result, from two frames fewer.

    It calls what pluggy's hook caller comes to by itself, ``_inner_hookexec`` of the manager, which
    is another one where calls are traced. Where pluggy has no such thing, the caller is called.
    """
    execute = getattr(manager, "_inner_hookexec", None)
    if execute is None:
        return partial(caller, **arguments)
    return partial(execute, caller.name, caller.get_hookimpls(), arguments, True)
