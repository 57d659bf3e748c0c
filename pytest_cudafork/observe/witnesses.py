"""Owns the choice of witnesses for a device, and what they cannot see together.

It does not know how a witness works, nor who reads what it writes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_cudafork.observe.driver.native_libs import NativeWitness
    from pytest_cudafork.observe.torch.api import Record, TorchWitness


class WitnessError(RuntimeError):
    """The device that was asked for is not to be had here; Recoverable by asking for another."""


class Witnesses:
    """The witnesses in force in this process; ``limits`` says in words what they cannot see."""

    def __init__(
        self,
        words: str,
        limits: tuple[str, ...] = (),
        native: NativeWitness | None = None,
        undo: Callable[[], object] | None = None,
    ) -> None:
        self.words = words
        self.limits = limits
        self.native = native
        self.torch: TorchWitness | None = None
        self.simulated = False
        """Whether torch's own word counts: with a real driver, initialized is what that says."""
        self._undo: list[Callable[[], object]] = [] if undo is None else [undo]

    def torch_touched(self) -> bool:
        """Whether torch was asked something for which a CUDA build would have initialized."""
        return self.simulated and self.torch is not None and self.torch.touched

    def undo(self) -> None:
        """Take all witnesses away."""
        while self._undo:
            self._undo.pop()()


def install(device: str, record: Record, poisoned: Callable[[], bool]) -> Witnesses:
    """Put the witnesses for ``device`` ("real", "none" or a face of the phantom) in force.

    Raises:
        WitnessError: the device is not to be had in this process.

    """
    if device == "none":
        return Witnesses(
            "none", ("no witness is installed; only the driver's and torch's own word is heard",)
        )
    witnesses = _real() if device == "real" else _phantom(device)
    from pytest_cudafork.observe.torch.api import TorchWitness

    torch = TorchWitness(device, record, witnesses.native, poisoned)
    witnesses._undo.append(torch.install())
    witnesses.torch = torch
    witnesses.simulated = device != "real"
    return witnesses


def _real() -> Witnesses:
    from pytest_cudafork.observe.driver import injection, native_libs

    if not native_libs.available():
        return Witnesses("torch API", (_no_native("the line of a touch"),))
    witness = injection.install()
    if witness.native is None:
        limit = f"the line of a touch by anything but torch: {witness.reason}"
        return Witnesses("torch API", (limit,), undo=witness.undo)
    return Witnesses("injection + torch API", native=witness.native, undo=witness.undo)


def _phantom(face: str) -> Witnesses:
    from pytest_cudafork.observe.driver import native_libs, phantom

    try:
        witness = phantom.install(face)
    except (native_libs.NativeUnavailable, phantom.PhantomError) as error:
        if face != phantom.ABSENT:
            raise WitnessError(f"phantom:{face}: {error}") from None
        return Witnesses("torch API", (f"touches by anything but torch: {error}",))
    return Witnesses("phantom driver + torch API", native=witness.native, undo=witness.undo)


def _no_native(what: str) -> str:
    from pytest_cudafork.observe.driver import native_libs

    return f"{what} by anything but torch: {native_libs.why_not()}"
