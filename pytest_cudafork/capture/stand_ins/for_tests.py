"""The stand-ins in each phase of each test, or for the length of one that asks for them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from pytest_cudafork.capture.interface.from_torch_on import from_torch_on, whole
from pytest_cudafork.observe.base.after_import import Failed

_WHAT = "nothing stood for the graphs of torch.cuda"


class StandIns:
    """A plugin for a session that is to capture software graphs.

    What a phase captures and leaves can be replayed in the next.
    """

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Iterator[None]:
        """Be in force while a phase of a test runs."""
        __tracebackhide__ = True
        with _from_import_on():
            return (yield)

    pytest_runtest_call = pytest_runtest_teardown = pytest_runtest_setup


def _from_import_on() -> contextlib.AbstractContextManager[None]:
    """Be in force at once, or as soon as torch has been imported."""

    def stand_ins(failed: Failed) -> contextlib.AbstractContextManager[None]:
        from pytest_cudafork.capture.stand_ins.in_force import in_force

        return in_force(failed)

    return from_torch_on(_WHAT, stand_ins)


@contextlib.contextmanager
def in_force_for_test() -> Iterator[None]:
    """Be in force from a fixture's set-up to its teardown; torch has been imported.

    Raises:
        GraphNotJudgedError: (at the end) a part of it could not be set up.
        RuntimeError: (at the end) a capture was begun and not ended.

    """
    from pytest_cudafork.capture.stand_ins.in_force import in_force

    with whole(_WHAT) as failed, in_force(failed):
        yield
