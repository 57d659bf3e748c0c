"""What is used of pluggy that it does not promise to keep: a hook called without its own frames."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest


def call_of(config: pytest.Config, hook: Any, **kwargs: Any) -> Callable[[], Any]:
    """Return the call of a hook whose first result counts.

    Two of the three frames that pluggy puts below a hook only hand the call on. They are left out:
    a test that recurses deeply has to do with those that are below it. Where pluggy is another, the
    call is the usual one.
    """
    execute = getattr(config.pluginmanager, "_inner_hookexec", None)
    implementations = getattr(hook, "get_hookimpls", None)
    if execute is None or implementations is None:
        return functools.partial(hook, **kwargs)
    return functools.partial(execute, hook.name, implementations(), kwargs, True)
