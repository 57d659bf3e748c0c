"""GPUs are handed out under locks: which, to whom, and what is said when there are too few."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.check.session import SESSION, CudaForkSession
from pytest_cudafork.gpus import inventory, lending
from pytest_cudafork.gpus import memory as memories
from pytest_cudafork.gpus.inventory import Gpu, Machine, phantom_machine
from pytest_cudafork.gpus.lending import Lender, Shortage, TooMuch, lock_path, names
from pytest_cudafork.gpus.locks import WaitedTooLong
from pytest_cudafork.gpus.nvml import DeviceMemory
from pytest_cudafork.settings import environment
from pytest_cudafork.settings.gpu_requests import GpuChoice, GpuWish
from pytest_cudafork.settings.options import Settings


@pytest.fixture(autouse=True)
def nothing_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lock in a folder of the test; nobody has limited the GPUs."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv(environment.VISIBLE_GPUS, raising=False)
    monkeypatch.delenv(environment.GPU_LOCKS, raising=False)


class Config:
    """A session's configuration, as far as a lender asks it."""

    def __init__(self, device: str | None, *, joined: bool = False) -> None:
        self.initialized = False
        self.cleanups: list[Any] = []
        settings = SimpleNamespace(device=device, ledger="/tmp/ledger")
        observer = SimpleNamespace(
            settings=settings, state=lambda: SimpleNamespace(initialized=self.initialized)
        )
        watch: Any = None if device is None else SimpleNamespace(observer=observer)
        self.stash = pytest.Stash()
        session = self.stash[SESSION] = CudaForkSession(Settings())
        session.watch, session.joined = watch, joined

    def add_cleanup(self, cleanup: Any) -> None:
        """Note what is to be done at the end."""
        self.cleanups.append(cleanup)


def lender_on(device: str | None, choice: GpuChoice | None = None, **about: Any) -> Any:
    """Return a lender and its configuration."""
    config: Any = Config(device, **about)
    return Lender(config, choice), config


def test_a_test_sees_its_gpus_and_locks_apart() -> None:
    lender, _ = lender_on("sm_90x2")
    lease = lender.lend("test_a", GpuWish(1))
    assert lease.environment[environment.VISIBLE_GPUS] == "0"
    assert lease.environment[environment.GPU_ORDER] == "PCI_BUS_ID"
    assert lease.environment[environment.GPU_LOCKS].endswith(lease.mark)
    assert lease.before is None, "a phantom has no memory"
    lease.end()


def test_two_tests_never_have_the_same_gpu() -> None:
    lender, _ = lender_on("sm_90x2")
    first, second = lender.lend("a", GpuWish(1)), lender.lend("b", GpuWish(1))
    assert not set(first.gpus) & set(second.gpus)
    assert first.mark != second.mark
    with pytest.raises(WaitedTooLong, match="a"):
        lender.lend("c", GpuWish(1, wait=0.01))
    first.end()
    third = lender.lend("c", GpuWish(1))
    assert third.gpus == first.gpus
    second.end()
    third.end()


def test_too_few_gpus_are_a_shortage_at_once() -> None:
    lender, _ = lender_on("sm_90x2", GpuChoice(most=1, text="1"))
    with pytest.raises(Shortage, match=r"needs 2 GPUs; this session has 1 .*--cuda-fork-gpus=1"):
        lender.lend("a", GpuWish(2))


def test_a_wish_for_more_memory_than_a_gpu_has_is_told_at_once() -> None:
    lender, _ = lender_on("sm_90x2")
    with pytest.raises(TooMuch, match=r"needs 1 GPU with 80 GiB each; this session has 79.5 GiB"):
        lender.lend("a", GpuWish(1, memory=80 << 30))


def test_tests_share_a_gpu_by_memory_beside_what_is_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lender, _ = lender_on("sm_90")
    first = lender.lend("a", GpuWish(1, memory=40 << 30))
    second = lender.lend("b", GpuWish(1, memory=39 << 30))
    assert first.gpus == second.gpus
    assert not first.alone
    with pytest.raises(WaitedTooLong):
        lender.lend("c", GpuWish(1, memory=1 << 30, wait=0.01))
    second.end()
    monkeypatch.setenv(environment.PHANTOM_MEMORY, str(tmp_path / "memory"))
    uuid = first.gpus[0].uuid
    memory = {uuid: DeviceMemory(45 << 30, {})}
    monkeypatch.setattr(memories, "measure", lambda gpus: memory)
    with pytest.raises(WaitedTooLong, match="has 5 GiB in use by others than tests"):
        lender.lend("c", GpuWish(1, memory=35 << 30, wait=0.01))
    third = lender.lend("c", GpuWish(1, memory=34 << 30))
    assert third.before == memory
    third.end()
    first.end()


@pytest.mark.parametrize("device", [None, "absent", "none"])
def test_a_machine_without_a_driver_has_none(
    device: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lending, "has_real_driver", lambda: False)
    lender, _ = lender_on(device)
    with pytest.raises(Shortage, match=r"no NVIDIA driver|shows no device|has none"):
        lender.lend("a", GpuWish(1))


def test_real_gpus_are_measured_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lending, "has_real_driver", lambda: True)
    monkeypatch.setattr(inventory, "real_machine", lambda: Machine((Gpu(0, "GPU-1"),)))
    monkeypatch.setattr(memories, "measure", lambda gpus: "measured")
    lender, config = lender_on("real")
    assert not lender.phantom
    lease = lender.lend("a", GpuWish(1))
    assert lease.before == "measured"
    lease.end()
    assert config.cleanups == []


def test_what_cuda_shows_for_good_is_lent_again() -> None:
    lender, config = lender_on("sm_90x2")
    first, second = phantom_machine("sm_90x2").gpus
    assert lender.seen_here() is None
    lender.note_seen((second,))
    assert lender.seen_here() is None, "CUDA is not initialized yet"
    config.initialized = True
    lender.note_seen((second,))
    lender.note_seen((first,))
    assert lender.seen_here() == (second,)
    lease = lender.lend("a", GpuWish(1))
    assert lease.gpus == (second,)
    lease.end()


def test_a_process_that_has_initialized_by_itself_shows_all() -> None:
    lender, config = lender_on("sm_90x2")
    config.initialized = True
    assert lender.seen_here() == phantom_machine("sm_90x2").gpus


def test_a_phantoms_locks_are_its_sessions_and_gone_in_the_end(tmp_path: Path) -> None:
    lender, config = lender_on("sm_90x2")
    lender.lend("a", GpuWish(1)).end()
    path = lock_path(config)
    assert Path(path).is_dir()
    assert "phantom" in path
    config.cleanups[0]()
    assert not os.path.exists(path)
    _, worker = lender_on("sm_90x2", joined=True)
    assert (worker.cleanups, lock_path(worker)) == ([], path)


def test_a_phantoms_locks_lie_beside_a_temporary_ledger() -> None:
    """Which is removed with its folder, even if the session is killed."""
    _, config = lender_on("sm_90x2")
    ledger = "/tmp/pytest-cudafork-x/ledger.jsonl"
    watch: Any = config.stash[SESSION].watch
    watch.observer.settings = SimpleNamespace(**{**vars(watch.observer.settings), "ledger": ledger})
    assert lock_path(config) == "/tmp/pytest-cudafork-x/gpus"


def test_a_ledger_of_any_name_has_locks() -> None:
    _, config = lender_on("sm_90x2")
    watch: Any = config.stash[SESSION].watch
    ledger = os.fsdecode(b"/tmp/\xff.jsonl")
    watch.observer.settings = SimpleNamespace(**{**vars(watch.observer.settings), "ledger": ledger})
    assert "phantom" in lock_path(config)


def test_real_locks_are_the_users(tmp_path: Path) -> None:
    config: Any = Config("real")
    assert lock_path(config) == str(tmp_path / f"pytest-cudafork-gpus-{os.getuid()}")


def test_gpus_are_named_as_cuda_reads_them() -> None:
    assert names((Gpu(2, "GPU-1"), Gpu(0, "MIG-1", mig=True))) == "2,MIG-1"
