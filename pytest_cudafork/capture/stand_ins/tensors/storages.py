"""Which memory stands for that of a GPU, which is pinned, and which lies on the host for sure.

It is noted by storage, as long as there is one: what a fixture of a wider scope holds lies for the
next test where it lay for the one before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parameter import is_lazy

from pytest_cudafork.capture.operators.traits import tensors_in
from pytest_cudafork.compat.torch_graphs.operators import without_torch_function
from pytest_cudafork.compat.torch_graphs.tensors import NO_STORAGE, identity_of, unwrapped

FLATTENS = "__tensor_flatten__"
_ENOUGH = 4096  # storages noted between two looks for those that are gone


class Storages:
    """What is known of storages. A weak reference keeps the address of one from another's use."""

    def __init__(self) -> None:
        self.on_gpu: dict[int, tuple[Any, int]] = {}  # weak reference, index of the GPU
        self.pinned: dict[int, Any] = {}
        self.on_host: dict[int, Any] = {}
        self._limit = _ENOUGH

    def index_of(self, tensor: Tensor) -> int | None:
        """Return the GPU that a tensor lies on; None: on none."""
        storage = storage_of(tensor)
        return None if storage is None else self.index_of_storage(storage)

    def index_of_storage(self, storage: Any) -> int | None:
        """Return the GPU that memory lies on; None: on none."""
        found = self.on_gpu.get(identity_of(storage))
        return None if found is None else found[1]

    def lies_on_host(self, tensor: Tensor) -> bool | None:
        """Return whether a tensor lies on the host; None: that is not known."""
        storage = storage_of(tensor)
        if storage is None:
            return None
        key = identity_of(storage)
        if key in self.on_gpu:
            return False
        return True if self._is_of_host(key) else None

    def all_lie_on_host(self, tensors: Iterable[Tensor]) -> bool:
        """Whether all tensors lie on the host for sure; there may be none."""
        return all(self.lies_on_host(each) for each in tensors)

    def is_number_of_host(self, tensor: Tensor) -> bool:
        """Whether it is a single number that lies on the host for sure."""
        if is_lazy(tensor) or tensor.dim():
            return False
        return self._is_in(self.on_host, tensor)

    def is_pinned(self, tensor: Tensor) -> bool:
        """Whether a tensor lies in pinned memory."""
        return self._is_in(self.pinned, tensor)

    def note_gpu(self, result: Any, index: int) -> None:
        """Note that the tensors of a result lie on a GPU; what lies on the host stays there."""
        for tensor in tensors_in(result):
            storage = storage_of(tensor)
            if storage is not None and not self._is_of_host(identity_of(storage)):
                self.note_storage(storage, index)
            if hasattr(tensor, FLATTENS):  # a wrapper says what tensors it is made of
                names, _ = getattr(tensor, FLATTENS)()
                self.note_gpu([getattr(tensor, name) for name in names], index)
        self._clear()

    def note_storage(self, storage: Any, index: int) -> None:
        """Note that memory lies on a GPU."""
        self.on_gpu[identity_of(storage)] = StorageWeakRef(storage), index

    def note_hosts(self, result: Any) -> None:
        """Note what lies on the host for sure.

        What follows from tensors of which that is not known may follow from gradients, which say
        that they lie there.
        """
        for tensor in tensors_in(result):
            storage = storage_of(tensor)
            if storage is not None and identity_of(storage) not in self.on_gpu:
                self.on_host[identity_of(storage)] = StorageWeakRef(storage)
        self._clear()

    def note_pinned(self, storage: Any) -> None:
        """Note that memory is pinned."""
        self.pinned[identity_of(storage)] = StorageWeakRef(storage)

    def _is_of_host(self, key: int) -> bool:
        return _is_alive(self.on_host, key) or _is_alive(self.pinned, key)

    @staticmethod
    def _is_in(known: dict[int, Any], tensor: Tensor) -> bool:
        storage = storage_of(tensor)
        return storage is not None and _is_alive(known, identity_of(storage))

    def _clear(self) -> None:
        """Forget storages that are gone, once there may be many."""
        if len(self.on_gpu) + len(self.on_host) <= self._limit:
            return
        for key, (weak, _) in list(self.on_gpu.items()):  # other threads may add
            if weak.expired():
                self.on_gpu.pop(key, None)
        for known in (self.pinned, self.on_host):
            for key, weak in list(known.items()):
                if weak.expired():
                    known.pop(key, None)
        self._limit = 2 * (len(self.on_gpu) + len(self.on_host)) + _ENOUGH


KNOWN = Storages()
"""Those of this process."""


def _is_alive(known: dict[int, Any], key: int) -> bool:
    found = known.get(key)
    return found is not None and not found.expired()


def storage_of(tensor: Tensor) -> Any:
    """Return the memory of a tensor, also of one that ``torch.func`` has wrapped; None: none."""
    try:
        return tensor.untyped_storage()
    except NO_STORAGE:
        if is_lazy(tensor):  # it answers what torch asks alone
            with without_torch_function():
                return tensor.untyped_storage()
        inner = unwrapped(tensor)
        return None if inner is tensor else storage_of(inner)
