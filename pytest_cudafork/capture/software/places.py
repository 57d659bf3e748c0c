"""Where tensors lie, for code that is shown a GPU: some on the host, the others on the device.

Without a mode that knows, all tensors count as lying on the device.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.overrides import TorchFunctionMode

from pytest_cudafork.compat.torch_graphs.modes import active_function_modes

OnHost = Callable[[Tensor], "bool | None"]
"""Says whether a tensor lies on the host; None: that is not known."""


class Places(TorchFunctionMode):  # type: ignore[misc]  # torch is not followed
    """A mode that knows where tensors lie."""

    def lies_on_host(self, tensor: Tensor) -> bool | None:
        """Return whether a tensor lies on the host; None: that is not known."""
        raise NotImplementedError

    def note_on_host(self, tensor: Tensor) -> None:
        """Note that a tensor lies on the host."""
        raise NotImplementedError


def known_places() -> OnHost | None:
    """Return what says where tensors lie in this thread; None: all lie on the device."""
    mode = _mode()
    return None if mode is None else mode.lies_on_host


def noted_on_host(tensor: Tensor) -> bool:
    """Note that a tensor lies on the host; False: it is not known where tensors lie.

    That is not known within a function of torch that works on the device.
    """
    mode = _mode()
    if mode is not None:
        mode.note_on_host(tensor)
    return mode is not None


def _mode() -> Places | None:
    return next((mode for mode in active_function_modes() if isinstance(mode, Places)), None)
