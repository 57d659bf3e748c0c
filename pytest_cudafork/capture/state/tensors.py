"""What is done to the memory below tensors: where it lies, saving it, putting it back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from pytest_cudafork.capture.interface.weak_tensors import WeakTensor
from pytest_cudafork.capture.state.state_tree import Kind, Node, walk
from pytest_cudafork.compat.torch_graphs.tensors import NO_STORAGE

MOST_BYTES = 256 << 20
"""How much of the memory that a function can reach is saved, beyond its static inputs."""


class Place(NamedTuple):
    """Where the contents of a tensor lie. Two tensors share memory if ``storage`` is equal."""

    storage: int  # address of the first byte
    nbytes: int
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


def place_of(tensor: torch.Tensor) -> Place | None:
    """Return where a tensor lies; None where it has no memory of its own (sparse, fake, meta)."""
    if not has_memory(tensor):
        return None
    storage = tensor.untyped_storage()
    return Place(
        storage.data_ptr(),
        storage.nbytes(),
        tensor.storage_offset(),
        tuple(tensor.shape),
        tuple(tensor.stride()),
        tensor.dtype,
        tensor.device,
    )


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a plain one: strided, with memory that can be read and written."""
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        return False
    if tensor.device.type == "meta":
        return False
    try:
        return bool(tensor.untyped_storage().data_ptr() != 0 or tensor.numel() == 0)
    except NO_STORAGE:
        return False


def storage_of(tensor: torch.Tensor) -> int:
    """Return the address of the memory below a tensor, 0 if it has none."""
    return tensor.untyped_storage().data_ptr() if has_memory(tensor) else 0


def alias(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor on the same memory that can be written whatever autograd says of the other.

    Dimensions that are expanded are taken once.
    """
    shape = [1 if step == 0 else n for n, step in zip(tensor.shape, tensor.stride(), strict=True)]
    plain = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    with torch.no_grad():
        plain.set_(tensor.untyped_storage(), tensor.storage_offset(), shape, tensor.stride())
    return plain


def raw(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of the whole storage below a tensor."""
    return raw_of(tensor.untyped_storage())


def raw_of(storage: torch.UntypedStorage | None) -> torch.Tensor:
    """Return the bytes of a storage; none where it is gone."""
    if storage is None:
        return torch.empty(0, dtype=torch.uint8)
    plain = torch.empty(0, dtype=torch.uint8, device=storage.device)
    with torch.no_grad():
        plain.set_(storage, 0, (storage.nbytes(),), (1,))
    return plain


def tensors_below(value: Any, name: str) -> dict[str, torch.Tensor]:
    """Return the tensors below a value by path, one for each place in memory."""
    return distinct_tensors(walk(value, name, plain=False))


def distinct_tensors(nodes: Iterable[Node]) -> dict[str, torch.Tensor]:
    """Return the tensors among these by path, one for each place in memory."""
    found: dict[str, torch.Tensor] = {}
    seen = set()
    for node in nodes:
        if node.kind is Kind.TENSOR:
            place = place_of(node.value)
            if place is None or place not in seen:
                seen.add(place)
                found[node.path] = node.value
    return found


class Saved:
    """Contents of memory at one moment. It keeps no tensor alive but its own copies."""

    def __init__(self, *groups: Mapping[str, torch.Tensor], most: int | None = None) -> None:
        """Save these tensors; those that go beyond ``most`` bytes together are left out."""
        self.left_out: list[str] = []
        self._parts: list[tuple[str, WeakTensor, torch.Tensor]] = []
        seen: set[int] = set()
        total = 0
        for path, tensor in (each for group in groups for each in group.items()):
            place = place_of(tensor)
            if place is None or place.storage in seen or not place.nbytes:
                continue
            seen.add(place.storage)
            total += place.nbytes
            if most is not None and total > most:
                total -= place.nbytes
                self.left_out.append(path)
                continue
            self._parts.append((path, WeakTensor(tensor), raw(tensor).clone()))

    def restore(self) -> None:
        """Put the contents back where the tensor is alive and lies as it did."""
        for _, now, contents in self._present():
            now.copy_(contents)

    def changed(self) -> list[str]:
        """Return the paths of those whose contents are others now."""
        return [path for path, now, then in self._present() if not torch.equal(now, then)]

    def _present(self) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
        """Give what is alive and lies as it did: what it holds now, and what it held."""
        for path, ref, contents in self._parts:
            tensor = ref()
            if tensor is not None and has_memory(tensor):
                now = raw(tensor)
                if now.numel() == contents.numel():
                    yield path, now, contents


@contextlib.contextmanager
def restored(
    tensors: Mapping[str, torch.Tensor], device_may_be_lost: Callable[[], bool]
) -> Iterator[Saved]:
    """Give tensors their first contents back at the end of a ``with``, and before when asked.

    Errors of that are ignored where the device may be lost, which is told as a finding already.
    """
    saved = Saved(tensors)
    try:
        yield saved
    finally:
        with contextlib.suppress(*([RuntimeError] if device_may_be_lost() else [])):
            saved.restore()


def copies(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return copies of tensors, by the same paths."""
    with torch.no_grad():
        return {path: tensor.detach().clone() for path, tensor in tensors.items()}


def devices_of(
    tensors: Mapping[str, torch.Tensor], device_of: Callable[[torch.Tensor], torch.device]
) -> dict[torch.device, str]:
    """Return the devices on which tensors lie, each with the path of the first one there."""
    found: dict[torch.device, str] = {}
    for path, tensor in tensors.items():
        found.setdefault(device_of(tensor), path)
    return found


class Randomness:
    """The state of random number generators at one moment: torch's own and those given."""

    def __init__(self, generators: Iterable[torch.Generator] = (), *, cuda: bool) -> None:
        self._cpu = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state() if cuda else None
        self._own = [(generator, generator.get_state()) for generator in generators]

    def restore(self) -> None:
        """Make the generators draw the same numbers again."""
        torch.set_rng_state(self._cpu)
        if self._cuda is not None:
            torch.cuda.set_rng_state(self._cuda)
        for generator, state in self._own:
            generator.set_state(state)

    def has_advanced(self) -> bool:
        """Whether numbers were drawn since."""
        if not torch.equal(self._cpu, torch.get_rng_state()):
            return True
        if self._cuda is not None and not torch.equal(self._cuda, torch.cuda.get_rng_state()):
            return True
        return any(not torch.equal(state, own.get_state()) for own, state in self._own)
