"""Hands out GPUs to tests: which there are, which are free, and for how long one waits."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pytest_cudafork.check.session import SESSION
from pytest_cudafork.settings import environment
from pytest_cudafork.settings.real_driver import has_real_driver

if TYPE_CHECKING:
    import pytest

    from pytest_cudafork.gpus.inventory import Gpu, Inventory, Machine
    from pytest_cudafork.gpus.locks import Held, LockFolder
    from pytest_cudafork.gpus.memory import Memory
    from pytest_cudafork.settings.gpu_requests import GpuChoice, GpuWish


SLACK_BYTES = 32 << 20
"""What may be in use on a GPU that nobody uses."""


class Shortage(Exception):
    """The session has fewer GPUs than a test needs; Unrecoverable on this machine."""


class TooMuch(Exception):
    """A test wants more memory than a GPU has; Recoverable: it can ask for less."""


class Lease:
    """The GPUs of one test, from before its protocol to after it.

    ``environment`` is what the test's process shall see, ``mark`` the name that its processes
    carry, ``before`` the memory in use when it began; None where nobody can tell. ``alone`` says
    that no other test has the GPUs meanwhile.
    """

    def __init__(self, gpus: tuple[Gpu, ...], held: Held) -> None:
        from pytest_cudafork.gpus.inventory import PCI_ORDER

        self.gpus = gpus
        self.mark = held.mark
        self.environment = {
            environment.VISIBLE_GPUS: names(gpus),
            environment.GPU_ORDER: PCI_ORDER,
            environment.GPU_LOCKS: held.inner_locks,
        }
        self.before: Memory | None = None
        self.alone = True
        self._held = held

    def end(self) -> None:
        """Give the GPUs back."""
        self._held.release()


class Lender:
    """Hands out the GPUs of one pytest process."""

    def __init__(self, config: pytest.Config, choice: GpuChoice | None) -> None:
        """Take the value of ``--cuda-fork-gpus``; nothing is looked up yet."""
        self._config = config
        self._choice = choice
        self._folder: LockFolder | None = None
        self._inventory: Inventory | None = None
        self._seen: tuple[Gpu, ...] | None = None
        if self.phantom and not config.stash[SESSION].joined:
            import shutil

            from pytest_cudafork.observe.base.undo import only_here

            path = lock_path(config)
            config.add_cleanup(only_here(lambda: shutil.rmtree(path, ignore_errors=True)))

    @property
    def phantom(self) -> bool:
        """Whether the GPUs are the phantom's."""
        return bool(_face(self._config))

    @property
    def measures(self) -> bool:
        """Whether memory can be in use on the GPUs: a phantom's are always empty but in tests."""
        return not self.phantom or bool(environment.value(environment.PHANTOM_MEMORY))

    def lend(self, test: str, wish: GpuWish) -> Lease:
        """Wait for the GPUs that a test wishes for, and take them.

        Raises:
            Shortage: there are too few in this session.
            TooMuch: no GPU has the memory.
            WaitedTooLong: others did not give them back in time.
            LocksUnusable: none can be locked.

        """
        from pytest_cudafork.gpus.locks import LockFolder

        inventory = self.inventory()
        shortage = inventory.shortage(wish.n)
        if shortage:
            raise Shortage(shortage)
        excess = inventory.excess(wish.n, wish.memory)
        if excess:
            raise TooMuch(excess)
        if self._folder is None:
            self._folder = LockFolder(lock_path(self._config))
        candidates = inventory.candidates(wish.n, wish.memory)
        seen = self.seen_here()
        if seen is not None and len(seen) == wish.n and set(seen) <= set(candidates):
            candidates = seen
        held = self._folder.acquire(
            [gpu.uuid for gpu in candidates],
            wish.n,
            share=wish.share,
            wait=wish.wait,
            test=test,
            memory=wish.memory,
            sizes={gpu.uuid: gpu.memory for gpu in candidates if gpu.memory},
            used=lambda: self._in_use(candidates),
        )
        gpus = tuple(gpu for gpu in candidates if gpu.uuid in held.gpus)
        lease = Lease(gpus, held)
        lease.alone = not wish.share and wish.memory is None
        if self.measures:
            from pytest_cudafork.gpus.memory import measure

            lease.before = measure(gpus)
        return lease

    def _in_use(self, gpus: tuple[Gpu, ...]) -> dict[str, int]:
        """What is in use on these GPUs, in bytes, by their UUIDs; nothing where nobody tells."""
        if not self.measures:
            return {}
        from pytest_cudafork.gpus.memory import measure

        found = measure(gpus) or {}
        return {uuid: memory.used for uuid, memory in found.items() if memory.used > SLACK_BYTES}

    def inventory(self) -> Inventory:
        """The GPUs that the session may use; looked up once, for the first test that wants one."""
        if self._inventory is None:
            from pytest_cudafork.gpus.inventory import take_inventory
            from pytest_cudafork.settings.gpu_requests import GpuChoice

            self._inventory = take_inventory(machine_of(self._config), self._choice or GpuChoice())
        return self._inventory

    def seen_here(self) -> tuple[Gpu, ...] | None:
        """The GPUs that CUDA shows in this process for good; None while it shows none yet."""
        if not _is_initialized(self._config):
            return None
        return self.inventory().visible if self._seen is None else self._seen

    def note_seen(self, gpus: tuple[Gpu, ...]) -> None:
        """Remember what this process saw in a test; if CUDA was initialized, it does for good."""
        if self._seen is None and _is_initialized(self._config):
            self._seen = gpus


def names(gpus: tuple[Gpu, ...]) -> str:
    """The GPUs as CUDA_VISIBLE_DEVICES has them."""
    return ",".join(gpu.visible_as for gpu in gpus)


def lock_path(config: pytest.Config) -> str:
    """Where to lock; a phantom's GPUs are this session's own and its workers'."""
    from pytest_cudafork.gpus.locks import user_folder

    if not _face(config):
        return user_folder()
    import hashlib

    from pytest_cudafork.observe.base.ledger_folder import gpu_folder

    watch = config.stash[SESSION].watch
    assert watch is not None, "there is no face without a watch"
    ledger = watch.observer.settings.ledger
    beside = gpu_folder(ledger)
    if beside is not None:  # goes with it, even if this session is killed
        return beside
    session = hashlib.sha256(os.fsencode(ledger)).hexdigest()[:16]
    return f"{user_folder()}-phantom-{session}"


def _face(config: pytest.Config) -> str:
    """The phantom's face where the session sees the phantom, else ""."""
    watch = config.stash[SESSION].watch
    device = "" if watch is None else watch.observer.settings.device
    return "" if device in ("real", "none") else device


def machine_of(config: pytest.Config) -> Machine:
    """Return the GPUs that this session could see: the phantom's, or those of the machine."""
    from pytest_cudafork.gpus.inventory import Machine, phantom_machine, real_machine

    face = _face(config)
    if face in ("", "absent") and not has_real_driver():
        return Machine((), "it has no NVIDIA driver")
    return phantom_machine(face) if face else real_machine()


def _is_initialized(config: pytest.Config) -> bool:
    """Whether CUDA is initialized in this process."""
    from pytest_cudafork.check.state import state_here

    return state_here(config.stash[SESSION].watch).initialized
