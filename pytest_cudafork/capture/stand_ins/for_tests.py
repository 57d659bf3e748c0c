"""The stand-ins in each phase of each test, where the session is to capture software graphs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from pytest_cudafork.capture.interface.from_torch_on import from_torch_on
from pytest_cudafork.observe.base.after_import import Failed

__all__ = ["StandIns"]


class StandIns:
    """A plugin; what a phase captures and leaves can be replayed in the next."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Iterator[None]:
        """Be in force while fixtures are set up."""
        __tracebackhide__ = True
        with _from_import_on():
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        """Be in force while the test runs."""
        __tracebackhide__ = True
        with _from_import_on():
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self) -> Iterator[None]:
        """Be in force while fixtures are torn down."""
        __tracebackhide__ = True
        with _from_import_on():
            return (yield)


def _from_import_on() -> contextlib.AbstractContextManager[None]:
    """Be in force at once, or as soon as torch has been imported."""

    def stand_ins(failed: Failed) -> contextlib.AbstractContextManager[None]:
        from pytest_cudafork.capture.stand_ins.in_force import in_force

        return in_force(failed)

    return from_torch_on("nothing stood for the graphs of torch.cuda", stand_ins)
