"""What the ranks of an engine compute together: sums and joins, over ``torch.distributed``.

gloo carries it between processes on a CPU, NCCL between GPUs. Where GPUs reach each other's memory,
kernels of our own sum hidden states (``peer_sums``). This folder alone imports
``torch.distributed``, and an engine of one process does not import it.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from sample_engine.errors import ConfigError, RankLostError
from sample_engine.parallel.peer_memory import share_memory, why_not_shared
from sample_engine.parallel.place import RankPlace

if TYPE_CHECKING:
    from sample_engine.parallel.peer_sums import PeerSums

__all__ = ["RankGroup"]

# Who waits for a rank that never comes is ended from outside: by the front end while the engine
# starts, by the watch over steps later. Both know more than a time that has run out here.
_WAIT = datetime.timedelta(hours=24)
_LOOPBACK = "lo"
_NOT_WISHED = "disable_custom_all_reduce=True"


class RankGroup:
    """A rank among the others. All of them have to make the same calls in the same order.

    Making it waits for the other ranks. Raises :class:`RankLostError` from any call where one of
    them is gone, and :class:`ConfigError` where torch was built without what is needed.
    """

    def __init__(self, place: RankPlace, device: torch.device) -> None:
        self.rank, self.size = place.rank, place.size
        self._device = device
        # gloo works in threads of its own. Who records operators (the plugin's software graph does)
        # has to record the wait for them, too, and dist.all_reduce waits without an operator.
        self._name: str | None = None
        backend = "nccl" if device.type == "cuda" else "gloo"
        if not dist.is_available() or not _has(backend):
            raise ConfigError(
                f"tensor_parallel_size={place.size} needs {backend}, and torch "
                f"{torch.__version__} was built without it."
            )
        _settle_transport()
        with self._others_there():
            dist.init_process_group(
                backend,
                store=dist.FileStore(place.rendezvous, place.size),
                rank=place.rank,
                world_size=place.size,
                timeout=_WAIT,
                device_id=device if device.type == "cuda" else None,
            )
        if backend == "gloo":
            self._name = dist.group.WORLD.group_name
        self._peers: PeerSums | None = None
        self.way = backend  # how sums are computed, for people

    def share_sums(
        self, most_tokens: int, columns: int, dtype: torch.dtype, *, wished: bool = True
    ) -> None:
        """Sum hidden states ``[T, columns]`` over peer memory from now on, where all ranks can.

        All ranks call it together, once. Raises :class:`RankLostError` where a sum does not end.
        """
        if self._device.type != "cuda":
            return
        why = why_not_shared(self._device, self.size) if wished else _NOT_WISHED
        if self.least(why is None):
            try:
                peers = self._peer_sums(most_tokens, columns, dtype)
            except (ImportError, RuntimeError) as error:
                why = f"{type(error).__name__}: {error}".splitlines()[0]
            if self.least(why is None):
                if self.least(peers.agree_with(self.all_reduce)):
                    self._peers = peers
                    self.way = f"peer memory up to {peers.most_tokens} tokens, else nccl"
                    return
                why = "sums over peer memory came to something else"
        self.way = f"nccl: {why or 'another rank cannot share its memory'}"

    def _peer_sums(self, most_tokens: int, columns: int, dtype: torch.dtype) -> PeerSums:
        from sample_engine.parallel.peer_sums import PeerSums, inbox_sizes

        room, inbox, flags = inbox_sizes(self.size, most_tokens, columns * dtype.itemsize)
        memory = share_memory(inbox + flags, self._device, dist.group.WORLD.group_name)
        return PeerSums(memory, self.rank, room, inbox, columns, dtype)

    def sum_and_norm(
        self,
        term: torch.Tensor,  # [T, C], this rank's
        residual: torch.Tensor | None,  # [T, C]
        norm: tuple[torch.Tensor, float] | None,  # weight [C] and epsilon
    ) -> tuple[torch.Tensor, torch.Tensor] | None:  # [T, C], [T, C]
        """``residual`` and the sum over ranks, and that normed, in one kernel; None: not here.

        Without ``norm`` it is twice the same. Device work alone: it may be captured.
        """
        peers = self._peers
        if peers is None or not peers.takes(term, *(() if residual is None else (residual,))):
            return None
        return peers.of(term, residual, norm)

    def all_reduce(
        self,
        tensor: torch.Tensor,  # of the same shape on all ranks; overwritten
    ) -> torch.Tensor:
        """The sum of all ranks' tensors, mostly in place. Device work alone: it may be captured."""
        found = self.sum_and_norm(tensor, None, None)
        if found is not None:
            return found[0]
        try:  # as below; this one is called twice in each layer
            if self._name is None:
                dist.all_reduce(tensor)
            else:
                ops = torch.ops._c10d_functional
                ops.wait_tensor(ops.all_reduce_(tensor, "sum", self._name))
        except RuntimeError as error:
            raise self._lost(error) from error
        return tensor

    def all_gather(
        self,
        tensor: torch.Tensor,  # [...], of the same shape on all ranks
    ) -> torch.Tensor:  # [ranks, ...]
        """The tensors of all ranks, in their order. The same bits on all of them."""
        found = tensor.new_empty((self.size, *tensor.shape))
        with self._others_there():
            if self._name is None:
                dist.all_gather_into_tensor(found, tensor.contiguous())
            else:
                dist.all_gather(list(found.unbind(0)), tensor.contiguous())
        return found

    def least(self, number: int) -> int:
        """The smallest of the ranks' numbers."""
        shared = torch.tensor([number], dtype=torch.int64, device=self._device)
        with self._others_there():
            dist.all_reduce(shared, op=dist.ReduceOp.MIN)
        return int(shared)

    def close(self) -> None:
        """Let go of the connections; the other ranks do so, too."""
        self._peers = None
        with contextlib.suppress(RuntimeError):  # one of them was faster
            dist.destroy_process_group()

    @contextlib.contextmanager
    def _others_there(self) -> Iterator[None]:
        """Say what an error of the transport means."""
        try:
            yield
        except RuntimeError as error:
            raise self._lost(error) from error

    def _lost(self, error: RuntimeError) -> RankLostError:
        return RankLostError(f"Rank {self.rank} of {self.size} cannot reach the others: {error}")


def _has(backend: str) -> bool:
    return bool(dist.is_nccl_available() if backend == "nccl" else dist.is_gloo_available())


def _settle_transport() -> None:
    """Keep the ranks' traffic on this host, and NVLink's multicast off.

    What the environment says already counts, except for multicast: it needs rights that containers
    often lack, and NCCL then fails in the middle of the first sum.
    """
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    with contextlib.suppress(OSError):
        if any(name == _LOOPBACK for _, name in socket.if_nameindex()):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", _LOOPBACK)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", _LOOPBACK)
