"""A plugin for ``bench_captures.py``: each test runs under a dispatch mode that looks at nothing.

What a session costs with it is the least that a session can cost whose operators are followed from
Python, whoever follows them.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode


class EmptyMode(TorchDispatchMode):  # type: ignore[misc]  # torch is not followed
    """Calls each operator as it would be called without."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return what the operator returns."""
        return func(*args, **(kwargs or {}))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Put the mode around a test and its fixtures."""
    with EmptyMode():
        return (yield)
