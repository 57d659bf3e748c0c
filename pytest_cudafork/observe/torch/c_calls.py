"""Calls of torch's C functions that a build without CUDA refuses, and that would initialize it.

Nothing in Python is called on their way, so they are watched where CPython calls them: each stays
the object that it is, and only a call that fails is looked at. The words of its error tell why it
failed: for want of a GPU, or for wrong arguments, which reach no driver anywhere.

A build with CUDA asks its driver. There, calls of types that make what lies on a GPU are looked at
before they are made, for who has a stand-in for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from pytest_cudafork.compat import cpython_layout, torch_internals
from pytest_cudafork.compat.unpatched import re
from pytest_cudafork.observe.base.undo import UndoStack
from pytest_cudafork.observe.torch.refusals import refusal
from pytest_cudafork.observe.torch.rows import MAKE, initialized

if TYPE_CHECKING:
    from pytest_cudafork.observe.torch.api import TorchWitness

Told = Callable[[tuple[Any, ...], "dict[str, Any] | None", "BaseException | None"], Any]

_WORDS = re.compile(
    r"pin_memory=True requires a CUDA|provide pin_memory allocator"
    r"|Cannot access accelerator device when none is available"
    r"|not linked with support for cuda devices|without ATen_cuda library"
    r"|^type torch\.cuda\.\S+ not available"
)

_FACTORIES = (
    *("arange", "asarray", "bartlett_window", "blackman_window", "empty", "empty_like"),
    *("empty_permuted", "empty_strided", "eye", "from_file", "full", "full_like"),
    *("hamming_window", "hann_window", "kaiser_window", "linspace", "logspace", "normal", "ones"),
    *("ones_like", "rand", "rand_like", "randint", "randint_like", "randn", "randn_like"),
    *("randperm", "range", "scalar_tensor", "sparse_bsc_tensor", "sparse_bsr_tensor"),
    *("sparse_compressed_tensor", "sparse_coo_tensor", "sparse_csc_tensor", "sparse_csr_tensor"),
    *("tensor", "tril_indices", "triu_indices", "zeros", "zeros_like"),
)
"""Functions of ``torch`` that pin memory, or take another device by its name."""

_METHODS = (
    *("cuda", "to", "type", "new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor"),
    *("new_zeros", "is_pinned"),
)
"""Methods of ``torch.Tensor``."""

_TENSORS = (
    *("BFloat16Tensor", "BoolTensor", "ByteTensor", "CharTensor", "DoubleTensor", "FloatTensor"),
    *("HalfTensor", "IntTensor", "LongTensor", "ShortTensor"),
    *("ComplexDoubleTensor", "ComplexFloatTensor"),
)
"""The types of ``torch.cuda`` and ``torch.cuda.sparse``."""


class CFunctions(Protocol):
    """What can watch C functions: the phantom driver's library."""

    def after_call(
        self, target: object, place: cpython_layout.Place, tell: Told, *, always: bool
    ) -> Callable[[], None] | None:
        """Call *tell* when *target*, which is called through *place*, has failed, or ``always``.

        Returns what takes it back; None where nothing more can be watched.
        """

    def before_call(
        self, target: object, place: cpython_layout.Place, tell: Told
    ) -> Callable[[], None] | None:
        """Call *tell* before each call of *target*; what it returns takes the place of the call."""


def is_for_want_of_a_gpu(error: BaseException) -> bool:
    """Whether a call failed because torch has no CUDA, and not for its arguments."""
    return isinstance(error, RuntimeError | TypeError) and bool(_WORDS.search(str(error)))


def arm(witness: TorchWitness, native: CFunctions, undo: UndoStack) -> None:
    """Watch the C functions of torch, which has been imported, until *undo*."""
    memory = cpython_layout.WritableMemory()
    for entry, target in _targets(sys.modules["torch"]):
        place = cpython_layout.place_of(target, memory)
        if place is None:
            continue
        takes_back = native.after_call(
            target, place, _teller(witness, entry), always=entry == "torch.Stream"
        )
        if takes_back is not None:
            undo.add(takes_back)


def arm_types(native: CFunctions, undo: UndoStack) -> None:
    """Ask who stands in for GPUs when types of a torch with CUDA are called, until *undo*."""
    torch: Any = sys.modules["torch"]
    memory = cpython_layout.WritableMemory()
    types = _named(("torch", torch, ("Generator",)), ("torch.cuda", torch.cuda, _TENSORS))
    for entry, target in types:
        place = cpython_layout.place_of(target, memory)
        takes_back = None if place is None else native.before_call(target, place, _asker(entry))
        if takes_back is not None:
            undo.add(takes_back)


def _targets(torch: Any) -> Iterator[tuple[str, Any]]:
    """Give the names and the objects; a name that this torch lacks is left out."""
    yield from _named(
        ("torch", torch, (*_FACTORIES, "Stream", "Generator", "device")),
        ("torch.Tensor", torch.Tensor, _METHODS),
        ("torch.cuda", torch.cuda, _TENSORS),
        ("torch.cuda.sparse", torch.cuda.sparse, _TENSORS),
    )
    if (parse_to := torch_internals.parse_to()) is not None:
        yield "torch.nn.Module.to", parse_to


def _named(*places: tuple[str, Any, tuple[str, ...]]) -> Iterator[tuple[str, Any]]:
    for prefix, owner, names in places:
        for name in names:
            if hasattr(owner, name):
                yield f"{prefix}.{name}", getattr(owner, name)


def _read_number(entry: str, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
    """Answer what only reads a number as a GPU, as a build with CUDA does."""
    torch: Any = sys.modules["torch"]
    named = dict(kwargs or {})
    number, *others = args or [named.pop("device")]
    device = torch.device("cuda", number)
    if entry == "torch.device":
        return device
    return torch_internals.parse_to()(device, *others, **named)


_READERS = {"torch.device": False, "torch.nn.Module.to": True}
"""What only reads a device, and whether its callers go on to use it."""


def _teller(witness: TorchWitness, entry: str) -> Told:
    def tell(
        args: tuple[Any, ...], kwargs: dict[str, Any] | None, error: BaseException | None
    ) -> Any:
        caller = sys._getframe().f_back  # none where C++ has made the call in a thread of its own
        if error is None:
            # Of all that is watched a stream alone can be had without CUDA: where no device is
            # named, it is one of the GPU if there is one.
            device = args[0] if args else (kwargs or {}).get("device")
            if device is None and not initialized():
                witness.touch(entry, caller)
        elif is_for_want_of_a_gpu(error):
            present = witness.face not in ("real", "absent")
            if present and entry in _READERS:
                return _read_number(entry, args, kwargs)
            make = getattr(sys.modules["torch"].cuda, MAKE, None) if present else None
            made = None if make is None else make(entry, args, kwargs)
            if made is not None:
                return made
            if not initialized() and _READERS.get(entry, True):
                witness.touch(entry, caller)
            if present:
                raise refusal(entry, witness.face) from None
        return None

    return tell


def _asker(entry: str) -> Told:
    def ask(
        args: tuple[Any, ...], kwargs: dict[str, Any] | None, error: BaseException | None
    ) -> Any:
        torch: Any = sys.modules["torch"]
        make = getattr(torch.cuda, MAKE, None)
        if make is None or (entry == "torch.Generator" and not _is_for_cuda(args, kwargs)):
            return None
        return make(entry, args, kwargs)

    return ask


def _is_for_cuda(args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> bool:
    """Whether the device that is named is a GPU; what names none is refused by who is called."""
    device = args[0] if args else (kwargs or {}).get("device")
    try:
        return device is not None and bool(sys.modules["torch"].device(device).type == "cuda")
    except (RuntimeError, TypeError):
        return False
