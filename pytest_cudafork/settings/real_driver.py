"""Whether an NVIDIA driver is here: the kernel's part of it, and the library that programs load.

A container without GPUs on a machine that has some shows the kernel's part alone: ``/proc`` is that
of the machine. Nothing in it can use CUDA, so it is a machine without a driver.
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cudafork.compat.unpatched import io, os
from pytest_cudafork.settings import environment

VERSION_FILE = "/proc/driver/nvidia/version"
DEVICE_SIGNS = (
    "/dev/nvidiactl",
    "/dev/dxg",  # WSL, with the GPU of any maker
    "/dev/nvhost-ctrl",  # Jetson
)
"""Files through which the library reaches the kernel's part; one of them is there."""
LIBCUDA = "libcuda.so.1"
PHANTOM_FOLDER = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
    *("observe", "driver", "native", "lib", "cuda"),
)
"""Where our stand-in of that name lies, which is no sign of a driver."""

_CACHE = "/etc/ld.so.cache"
_USUAL = ("/lib64", "/usr/lib64", "/lib", "/usr/lib")
_WITHOUT_A_CACHE = ("/usr/local/lib", "/run/opengl-driver/lib")  # of musl, of NixOS
_MAKES_DEVICES = ("/usr/bin/nvidia-modprobe", "/usr/sbin/nvidia-modprobe")
"""The library makes its device files at its first use, by this program unless it may itself."""


def has_real_driver() -> bool:
    """Whether a driver is here that programs could use; asks only the file system."""
    return not why_no_driver()


def why_no_driver() -> str:
    """Return in words what of a driver is missing here, "" if nothing is."""
    sign = _sign()
    if not sign:
        return f"{DEVICE_SIGNS[0]} is not there"
    if not any(map(os.path.exists, _libraries())):
        return f"{sign} is there, but no {LIBCUDA} is where programs look for it"
    if sign not in DEVICE_SIGNS and not any(map(os.path.exists, _MAKES_DEVICES)):
        return f"{sign} is there, but {DEVICE_SIGNS[0]} is not, nor nvidia-modprobe that makes it"
    return ""


def has_kernel_part() -> bool:
    """Whether the kernel's part is here, with or without the rest."""
    return bool(_sign())


def _sign() -> str:
    """Return a file of the kernel's part, a device if there is one; "" if there is none."""
    return next(filter(os.path.exists, (*DEVICE_SIGNS, VERSION_FILE)), "")


def _libraries() -> Iterator[str]:
    """Return where the loader would look for the library, ours and stubs for linking left out."""
    folders = environment.value(environment.LIBRARY_PATH).replace(";", ":").split(":")
    for folder in (*folders, *_USUAL):
        is_ours = os.path.abspath(folder) == PHANTOM_FOLDER
        if folder and not is_ours and not is_for_linking(folder):
            yield os.path.join(folder, LIBCUDA)
    try:
        with io.open(_CACHE, "rb") as file:
            # Texts that end with a zero; most of them are of other libraries.
            *before, _ = file.read().split(os.fsencode(f"/{LIBCUDA}\0"))
    except OSError:
        yield from (os.path.join(folder, LIBCUDA) for folder in _WITHOUT_A_CACHE)
        return
    for data in before:
        yield os.path.join(os.fsdecode(data.rpartition(b"\0")[2]), LIBCUDA)


def is_for_linking(folder: str) -> bool:
    """Whether a folder is that of libraries which programs are linked with and that do nothing."""
    return os.path.basename(folder.rstrip("/")) == "stubs"
