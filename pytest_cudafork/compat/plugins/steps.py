"""What the plugin uses of pytest-steps: how the steps of a test function can be told.

Each step is a test of its own, with a parameter of a name of pytest-steps; all of them go on with
one generator, or share one object. In another process there is another, which would begin anew.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest

_PARAMETERS = ("________step_name_", "test_step")
"""Of a generator (``GENERATOR_MODE_STEP_ARGNAME``), and the usual one of a function for all."""


def function_of(item: pytest.Item) -> tuple[Any, ...] | None:
    """Return what a step has in common with the others of its function; None: it is no step."""
    if "pytest_steps" not in sys.modules:
        return None
    callspec: Any = getattr(item, "callspec", None)
    params: Any = getattr(callspec, "params", {})
    if not any(name in params for name in _PARAMETERS):
        return None
    # the steps of one run have the very objects; pytest's numbers of them count combinations
    others = [(name, id(value)) for name, value in params.items() if name not in _PARAMETERS]
    return (item.parent, getattr(item, "originalname", None), tuple(sorted(others)))
