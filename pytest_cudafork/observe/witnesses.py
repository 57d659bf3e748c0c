"""The witnesses of CUDA for a device: which are put in force, and what they cannot see together.

Whether CUDA is initialized is asked of the driver; at which line that happened only a witness can
tell, who is called when it happens. One lies in or below the driver (``DRIVER_WITNESSES``: real or
phantom), one in torch's Python API, for what reaches no driver.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pytest_cudafork.compat import cpython_layout
from pytest_cudafork.compat.unpatched import contextlib
from pytest_cudafork.settings import devices
from pytest_cudafork.without_torch import NO_TORCH, torch_is_missing

if TYPE_CHECKING:
    from pytest_cudafork.observe.driver.native_libs import NativeWitness
    from pytest_cudafork.observe.torch.api import Record, TorchWitness


class WitnessError(RuntimeError):
    """The device that was asked for is not to be had here; Recoverable by asking for another."""


class Installed(Protocol):
    """A witness in or below a driver, in force; ``reason`` says why where it is not."""

    @property
    def native(self) -> NativeWitness | None:
        """The library that watches, or None where it is left alone."""

    @property
    def reason(self) -> str:
        """Why there is none, in words."""

    def undo(self) -> None:
        """Take it away."""


class DriverWitness(NamedTuple):
    """A kind of witness in or below a driver.

    Attributes:
        name: What the header of a session calls it.
        serves: Whether it is the one for a device ("real", or a face of the phantom).
        install: Puts it in force for a device; raises ``native_libs.WitnessUnavailable``.
        variables: The variables by which it is in force in a program that is no watched Python,
            for a device and the environment that the program would have otherwise.
        unseen: What only torch's calls tell without it.
        is_needed: Whether a session on such a device cannot go on without it.

    """

    name: str
    serves: Callable[[str], bool]
    install: Callable[[str], Installed]
    variables: Callable[[str, Mapping[str, str]], dict[str, str]]
    unseen: str
    is_needed: Callable[[str], bool]


def _of(module: str, function: str) -> Callable[..., Any]:
    """Return a function of a module in ``observe/driver``, which is loaded when it is called."""

    def call(*args: Any) -> Any:
        found = importlib.import_module(f"pytest_cudafork.observe.driver.{module}")
        return getattr(found, function)(*args)

    return call


DRIVER_WITNESSES = (
    DriverWitness(
        "injection",
        serves=lambda device: device == "real",
        install=_of("injection", "install"),
        variables=_of("injection", "variables"),
        unseen="the line of a touch",
        is_needed=lambda device: False,
    ),
    DriverWitness(
        "phantom driver",
        serves=lambda device: device not in ("real", "none"),
        install=_of("phantom", "install"),
        variables=_of("phantom", "variables"),
        unseen="touches",
        is_needed=lambda device: device != devices.ABSENT,  # without it no GPU is shown
    ),
)
"""The first that serves a device is its witness. Each has a module in ``observe/driver``."""


_UNSEEN_IN_C = (
    "what torch's C functions do with a GPU that a build of torch without CUDA refuses "
    "(pin_memory=True, torch.Generator('cuda')): how this Python calls them is not known"
)


class Witnesses:
    """The witnesses in force in this process.

    ``driver`` names the one in or below the driver, "" for none; ``limits`` says in words what they
    cannot see.
    """

    def __init__(
        self,
        driver: str = "",
        limits: tuple[str, ...] = (),
        native: NativeWitness | None = None,
        undo: Callable[[], object] | None = None,
    ) -> None:
        self._driver = driver
        self.limits = limits
        self.native = native
        self.torch: TorchWitness | None = None
        self.simulated = False
        """Whether torch's own word counts: with a real driver, initialized is what that says."""
        self._undo = contextlib.ExitStack()
        if undo is not None:
            self._undo.callback(undo)

    @property
    def words(self) -> str:
        """The names of those that have something to watch."""
        torch = "" if self.torch is None or torch_is_missing() else "torch API"
        return " + ".join(filter(None, (self._driver, torch))) or "none"

    def add_torch(self, torch: TorchWitness, *, simulated: bool) -> None:
        """Put the witness in torch's Python API in force beside the others."""
        self._undo.callback(torch.install())
        self.torch, self.simulated = torch, simulated

    def torch_touched(self) -> bool:
        """Whether torch was asked something for which a CUDA build would have initialized."""
        return self.simulated and self.torch is not None and self.torch.touched

    def is_writing(self) -> bool:
        """Whether another thread has touched, and its record is not in the ledger yet."""
        return (self.native is not None and self.native.is_writing()) or (
            self.torch is not None and self.torch.is_writing()
        )

    def undo(self) -> None:
        """Take all witnesses away."""
        self._undo.close()


def install(device: str, record: Record, poisoned: Callable[[], bool]) -> Witnesses:
    """Put the witnesses for ``device`` ("real", "none" or a face of the phantom) in force.

    Raises:
        WitnessError: the device is not to be had in this process.

    """
    if device == "none":
        return Witnesses(
            limits=("no witness is installed; only the driver's and torch's own word is heard",)
        )
    witness = next(one for one in DRIVER_WITNESSES if one.serves(device))
    witnesses = _in_the_driver(witness, device)
    from pytest_cudafork.observe.torch.api import TorchWitness

    torch = TorchWitness(device, record, witnesses.native, poisoned)
    witnesses.add_torch(torch, simulated=device != "real")
    if witnesses.native is not None and device != "real" and not cpython_layout.is_known():
        witnesses.limits += (_UNSEEN_IN_C,)
    return witnesses


def variables_without_python(device: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which a witness in the driver sees a program that is no Python.

    {}: nothing sees it.

    Args:
        device: "real", "none" or a face of the phantom.
        environ: The environment that the program would have otherwise.

    """
    from pytest_cudafork.observe.driver import native_libs

    witness = next((one for one in DRIVER_WITNESSES if one.serves(device)), None)
    if witness is None or device == "none" or native_libs.why_not():
        return {}
    return witness.variables(device, environ)


def _in_the_driver(witness: DriverWitness, device: str) -> Witnesses:
    from pytest_cudafork.observe.driver.native_libs import WitnessUnavailable

    try:
        installed = witness.install(device)
    except WitnessUnavailable as error:
        if witness.is_needed(device):
            raise WitnessError(f"phantom:{device}: {error}") from None
        return Witnesses(limits=(_unseen(witness, str(error)),))
    if installed.native is None:
        return Witnesses(limits=(_unseen(witness, installed.reason),), undo=installed.undo)
    return Witnesses(witness.name, native=installed.native, undo=installed.undo)


def _unseen(witness: DriverWitness, why: str) -> str:
    """Say what is not seen without a witness in the driver, and why there is none."""
    by = f"by anything ({NO_TORCH})" if torch_is_missing() else "by anything but torch"
    return f"{witness.unseen} {by}: {why}"
