"""Whether CUDA is initialized in another process, and whether it can still be used there.

What the process told itself, in its ledger, is heard first; then NVML, which knows who has a
context; then what is mapped and open. Nothing is asked of the process.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pytest_cudafork.attach.target import Target
from pytest_cudafork.gpus.nvml import NvmlError, open_nvml
from pytest_cudafork.observe.base.records import Record
from pytest_cudafork.observe.driver.probe import Verdict
from pytest_cudafork.observe.story.images import moment_of
from pytest_cudafork.observe.story.stories import History
from pytest_cudafork.observe.story.touch import Frame, Touch
from pytest_cudafork.process.descendants import process_state

_CLOCK_NS = 20_000_000
"""A tick of the kernel's clock, in which the start of a process is counted, and a reserve."""
_RELEASE = re.compile(r"/libcuda\.so\.(\d+)\.\d")
_MAPS_DEVICES_FROM = 580
"""Of drivers from this release on it was seen: NVML loads the driver and opens its devices, and
cuInit, which opens the same ones, maps some of them, too."""


@dataclass(frozen=True)
class State:
    """CUDA in another process.

    Attributes:
        verdict: What is known.
        why: How it is known, in words.
        touch: The touch that initialized it, or the process that it was forked from; None: no
            ledger tells.
        fork: The stack of the fork that poisoned it, innermost first; () if it was not recorded.

    """

    verdict: Verdict
    why: str
    touch: Touch | None = None
    fork: tuple[Frame, ...] = ()


def users_of_gpus() -> frozenset[int] | None:
    """Return the processes that have a context on a GPU, as NVML lists them; None without it.

    In a container NVML may count processes otherwise, or hide them.
    """
    found: set[int] = set()
    try:
        with open_nvml() as nvml:
            for device in nvml.devices():
                found |= nvml.memory(device.uuid).processes.keys()
    except NvmlError:
        return None
    return frozenset(found)


def judge(
    target: Target,
    history: History | None,
    users: Collection[int] | None,
    ancestors: Mapping[int, State],
) -> State:
    """Say what is known of CUDA in a process.

    Args:
        target: What ``/proc`` shows of it.
        history: Its ledger; None if there is none.
        users: The processes with a context; None where NVML tells nothing.
        ancestors: What is known of processes that it may descend from.

    """
    told = _told(target, history) if history is not None else None
    if told is not None:
        return told
    if users is not None and target.pid in users:
        return State(Verdict.INITIALIZED, "NVML lists it with a context on a GPU")
    parent = ancestors.get(target.parent)
    inherits = target.forked is True and parent is not None
    if inherits and parent is not None and parent.verdict is Verdict.POISONED:
        return State(
            Verdict.POISONED,
            f"forked from process {target.parent}, which is poisoned",
            parent.touch,
        )
    if not target.driver:
        return State(Verdict.CLEAN, "no driver is loaded")
    if target.phantom:
        return _of_phantom(target, history is not None)
    if not target.uvm and not target.device:
        if target.other_device:
            return State(
                Verdict.NOT_OBSERVABLE,
                f"the driver is loaded, and has {target.other_device} open, as on WSL or Jetson: "
                "whether it is initialized, that does not tell",
            )
        return State(Verdict.CLEAN, "the driver is loaded, and the device it initializes by is not")
    if target.nvml and not target.device:
        return _beside_nvml(target)
    return _with_the_device(target, parent if inherits else None, users)


def _beside_nvml(target: Target) -> State:
    """Judge a process that has NVML loaded and the driver's devices open, and none mapped."""
    release = _RELEASE.search(target.driver)
    if release is not None and int(release[1]) >= _MAPS_DEVICES_FROM:
        return State(
            Verdict.CLEAN,
            "NVML has the driver's devices open, and none is mapped, as they are once the driver "
            "is initialized",
        )
    return State(
        Verdict.NOT_OBSERVABLE,
        "the driver's devices are open, by NVML, which is loaded, or because the driver is "
        f"initialized: of this release ({target.driver}) it is not known how to tell",
    )


def _with_the_device(target: Target, parent: State | None, users: Collection[int] | None) -> State:
    """Judge a process that has the device open which the driver opens when it is initialized.

    ``parent`` is what is known of the process that forked it; None: nothing, or it was not forked.
    """
    if parent is None and target.forked is True:
        return State(
            Verdict.NOT_OBSERVABLE,
            f"the driver was initialized here, or in process {target.parent} before the fork, "
            "which may not be read",
        )
    if parent is None or parent.verdict is Verdict.CLEAN:
        return State(Verdict.INITIALIZED, "it has the device open that the driver initializes by")
    if users is not None and target.parent in users:
        return State(
            Verdict.POISONED,
            f"it has inherited the driver's devices from process {target.parent}, and NVML lists "
            "no context of its own",
            parent.touch,
        )
    return State(
        Verdict.NOT_OBSERVABLE,
        f"it has the driver's devices open, as process {target.parent} has, from which it was "
        "forked: inherited, or initialized by itself",
    )


def _of_phantom(target: Target, has_ledger: bool) -> State:
    if has_ledger:
        return State(Verdict.CLEAN, "the phantom driver is loaded, and its ledger has no touch")
    return State(
        Verdict.NOT_OBSERVABLE,
        "the phantom driver is loaded, which opens no device, and its ledger is not known: name it "
        "with --ledger",
    )


def _told(target: Target, history: History) -> State | None:
    """Return what the ledger says of a process; None if it says nothing."""
    since = process_state.monotonic_of(target.started) - _CLOCK_NS
    pid = target.in_ledger
    image = history.image_of(pid)
    own = [
        record
        for record in history.records
        if moment_of(record) >= since and image.holds(record["pid"], moment_of(record))
    ]
    if any(_is_poisoned(record) for record in own):
        by = history.ancestors(pid)[1:]
        parent = f"process {by[0]}" if by else "a process that is not known"
        parent += " of its PID namespace" if by and target.inner else ""
        return State(
            Verdict.POISONED,
            f"its ledger says that it was forked from {parent}, which had initialized CUDA",
            history.initializer(pid),
            history.fork_of(pid),
        )
    ids = {record["id"] for record in own if record["k"] == "touch"}
    touches = [touch for touch in history.touches if touch.id in ids]
    if touches:
        return State(Verdict.INITIALIZED, "its ledger has the touch", touches[0])
    return None


def _is_poisoned(record: Record) -> bool:
    if record["k"] == "child":
        return True
    return bool(record.get("poisoned")) or record.get("state") == Verdict.POISONED.value


def read_history(path: str) -> tuple[History | None, list[str]]:
    """Read a ledger; None for no path. Beside it: what is known to be missing, in words.

    Raises:
        OSError: There is no such file, or it is no ledger.

    """
    if not path:
        return None, []
    from pytest_cudafork.observe.base.ledger import Ledger, is_ledger

    if os.path.isfile(path) or not os.path.exists(path):
        with open(path, "rb"):  # raises what is wrong with it
            pass
    if not is_ledger(path):
        raise OSError(f"{path} is no ledger of pytest-cudafork")
    with contextlib.closing(Ledger(path).reader()) as reader:
        lost = reader.damage()  # first: it waits for a record that is being written
        return History(reader.new()), lost
