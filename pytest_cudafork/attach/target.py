"""One process as ``/proc`` shows it: who it is, and what it has mapped and open of CUDA."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
from typing import NamedTuple

from pytest_cudafork.observe.driver import native_libs
from pytest_cudafork.observe.driver.probe import runs_image_of
from pytest_cudafork.process.descendants import process_state
from pytest_cudafork.settings import environment

_PYTHON = re.compile(r"/(?:lib)?python\d?(?:\.\d+)?t?(?:[.-][\w.-]*)?$|/pypy3?[\d.]*$")
_DRIVER = re.compile(r"/libcuda\.so")
_NVML = re.compile(r"/libnvidia-ml\.so")
_UVM = "/dev/nvidia-uvm"
"""What the driver opens in its first cuInit, and NVML of some releases, too."""
_DEVICE = re.compile(r"/dev/nvidia(?:\d+|ctl)$")
"""What the driver maps in its first cuInit, and NVML does not."""
_OTHER_DEVICE = re.compile(r"/dev/(?:dxg|nvmap|nvhost-)")
"""What the drivers of WSL and of Jetson have open instead; from when on was not seen."""


class Unreadable(Exception):
    """A process cannot be looked at; the message says why. Recoverable by another user or PID."""


class Target(NamedTuple):
    """What ``/proc`` says of one process.

    Attributes:
        pid: Its number.
        command: Its command line.
        program: The file that it runs.
        python: The file of its Python: an executable or a library; "" if there is none.
        parent: The process that started it, or has taken it over.
        forked: Whether it still runs the image that it inherited from that; None: not known.
        started: When it was started, in seconds of the clock since the machine's start.
        driver: The driver library that is mapped; "" for none.
        phantom: Whether that is the phantom driver.
        nvml: Whether NVML's library is mapped, which opens devices of the driver itself.
        uvm: Whether the device is open or mapped that the driver opens when it is initialized.
        device: Whether a GPU's device or the control device is mapped.
        ledger: The ledger that it was told to write, or has open; "".
        other_device: The device of a driver of another kind (WSL, Jetson) that is open or mapped.
        inner: Its number in its own PID namespace, as that of a container, by which a ledger knows
            it; 0: there it has the same.

    """

    pid: int
    command: str
    program: str
    python: str
    parent: int
    forked: bool | None
    started: float
    driver: str
    phantom: bool
    nvml: bool
    uvm: bool
    device: bool
    ledger: str
    other_device: str = ""
    inner: int = 0

    @property
    def in_ledger(self) -> int:
        """The number by which its ledger knows it."""
        return self.inner or self.pid


def read_target(pid: int) -> Target:
    """Read a process.

    Raises:
        Unreadable: There is none of that number, it has ended, it is a thread of a process, a part
            of the kernel, or another user's.

    """
    state = process_state.state_of(pid)
    if not state:
        raise Unreadable(f"there is no process {pid}; it may have ended")
    process = process_state.status_of(pid, "Tgid")
    if process not in (
        "",
        str(pid),
    ):  # the kernel shows it as a process, of which no ledger and no NVML knows
        raise Unreadable(f"{pid} is a thread of process {process}: name the process")
    if not process_state.lives(pid):
        parent = process_state.parent_of(pid)
        raise Unreadable(
            f"process {pid} has ended; its parent, process {parent}, has not asked for its status"
        )
    try:
        program = os.readlink(f"/proc/{pid}/exe")
        paths = _mapped(pid)
        opened = _opened(pid)
    except FileNotFoundError:
        if process_state.lives(pid):
            raise Unreadable(f"process {pid} is a part of the kernel, and no program") from None
        raise Unreadable(f"process {pid} ended while it was looked at") from None
    except PermissionError:
        raise Unreadable(f"process {pid} may not be read: {_why_not(pid)}") from None
    except ProcessLookupError:
        raise Unreadable(f"process {pid} ended while it was looked at") from None
    parent = process_state.parent_of(pid)
    driver = next((path for path in paths if _DRIVER.search(path)), "")
    return Target(
        pid=pid,
        command=process_state.program_of(pid),
        program=program,
        python=next((path for path in (program, *paths) if _PYTHON.search(path)), ""),
        parent=parent,
        forked=runs_image_of(pid, parent),
        started=process_state.started_at(pid),
        driver=driver,
        phantom=bool(driver) and _is_phantom(driver),
        nvml=any(_NVML.search(path) for path in paths),
        uvm=any(path.startswith(_UVM) for path in (*paths, *opened)),
        device=any(_DEVICE.match(path) for path in paths),
        ledger=_ledger(pid, opened),
        other_device=next(filter(_OTHER_DEVICE.match, (*paths, *opened)), ""),
        inner=_inner_number(pid),
    )


def _inner_number(pid: int) -> int:
    """Return the number of a process in its own PID namespace; 0 where it is the same as here."""
    _, *inner = process_state.status_of(pid, "NSpid").split() or [""]
    return int(inner[-1]) if inner else 0


def _mapped(pid: int) -> list[str]:
    """Return the files that are mapped, each once."""
    found: dict[str, None] = {}
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
        for line in file:
            path = line.rstrip("\n").split(None, 5)[5:]  # five numbers stand before it
            if path and path[0].startswith("/"):
                found[path[0].removesuffix(" (deleted)")] = None
    return list(found)


def _opened(pid: int) -> list[str]:
    """Return what the open descriptors lead to."""
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    return found


def _is_phantom(driver: str) -> bool:
    ours = os.path.realpath(native_libs.PHANTOM_DRIVER)
    if os.path.realpath(driver) == ours:
        return True
    # another installation's, or a copy
    return f"{os.sep}pytest_cudafork{os.sep}" in driver


def _ledger(pid: int, opened: list[str]) -> str:
    """Return the ledger of a process: what it was started with, else what it reads itself."""
    from pytest_cudafork.observe.base.ledger import is_ledger

    told = ""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        for entry in file.read().split(b"\0"):
            name, _, text = entry.partition(b"=")
            if name == environment.LEDGER.encode():
                told = os.fsdecode(text)
    if told and os.path.isfile(told):
        return told
    return next((path for path in opened if path.endswith(".jsonl") and is_ledger(path)), "")


def _why_not(pid: int) -> str:
    theirs, own = _user_of(pid), _name(os.geteuid())
    if theirs == own:
        return (
            f"it is {own}'s as this is, and the system protects it: a container needs the "
            "capability SYS_PTRACE for that, and a program with rights of its own is read by root"
        )
    return f"it is {theirs}'s, and this is {own}. Run this as that user or as root"


def _user_of(pid: int) -> str:
    try:
        return _name(os.stat(f"/proc/{pid}").st_uid)
    except OSError:
        return "another user"


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
