"""The fixture ``phantom_cuda``: GPUs that are not there, for the length of one test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from pytest_cudafork.check.watch import Watch
from pytest_cudafork.compat.unpatched import os
from pytest_cudafork.observe.driver.native_libs import NativeUnavailable, NativeWitness
from pytest_cudafork.observe.driver.phantom import PhantomError
from pytest_cudafork.observe.driver.phantom import install as install_phantom
from pytest_cudafork.observe.handed_on import WatchSettings
from pytest_cudafork.settings.devices import ABSENT, parse_face

if TYPE_CHECKING:
    from pytest_cudafork.check.session import CudaForkSession

DEFAULT_FACE = "sm_90"


class PhantomCuda:
    """The switch that the fixture hands to the test."""

    def __init__(self, outer: Watch | None) -> None:
        self._outer = outer
        self._inner: Watch | None = None
        self._native: NativeWitness | None = None
        self._state = 0

    def __call__(self, face: str = DEFAULT_FACE) -> None:
        """Show these GPUs from now on, for instance ``sm_100x8``.

        Raises:
            ValueError: it is not a face; the message names the rule.

        """
        parse_face(face)
        self.hide()
        probe = install_phantom(ABSENT)  # to read and later restore its state
        self._native, self._state = probe.native, probe.native.state()
        probe.undo()
        probe.native.reset()
        inner = Watch(self._settings(face), str(os.getpid()))
        inner.begin()
        self._inner = inner

    def _settings(self, face: str) -> WatchSettings:
        if self._outer is None:
            return WatchSettings(ledger=os.devnull, device=face, level="poison")
        return self._outer.observer.settings._replace(device=face)

    def hide(self) -> None:
        """Put everything back to how it was before the test."""
        if self._inner is not None:
            self._inner.end()
            self._inner = None
        if self._native is not None:
            self._native.reset(self._state)
            self._native = None


def phantom_for(session: CudaForkSession) -> Iterator[PhantomCuda]:
    """Run the fixture: show one GPU, give the switch, put everything back.

    Skips the test where the phantom cannot stand in for the driver.
    """
    phantom = PhantomCuda(session.watch)
    try:
        phantom()
    except (PhantomError, NativeUnavailable) as error:
        pytest.skip(f"phantom_cuda: {error}")
    try:
        yield phantom
    finally:
        phantom.hide()
